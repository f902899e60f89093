"""How far long work is, on stderr."""

import sys
import time

_SECONDS_BETWEEN_LINES = 10.0
_ERASE_LINE = "\r\x1b[K"


class Progress:
    """One line that is written anew on a terminal; else a line now and then.

    Args:
        stream: default: stderr.

    Example:

    >>> import io
    >>> from keras_sa.analysis.command.progress import Progress
    >>> progress = Progress(io.StringIO())
    >>> report = progress.stage("coverage")
    >>> report(1, 10)
    >>> progress.close()
    """

    def __init__(self, stream=None):
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._start = self._last = time.monotonic()
        self._is_open = False

    def stage(self, name):
        """A function of `(steps done, steps in all)` for a piece of work."""
        if self._is_terminal:
            self._write(name)

        def report(done, total):
            text = f"{name}: {100 * done / max(total, 1):.0f} %"
            if self._is_terminal or self._is_due():
                self._write(text)

        return report

    def say(self, text):
        """A line that stays."""
        self.close()
        print(text, file=self._stream, flush=True)

    def close(self):
        """Takes the line off a terminal."""
        if self._is_open:
            self._stream.write(_ERASE_LINE)
            self._stream.flush()
            self._is_open = False

    def _is_due(self):
        return time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES

    def _write(self, text):
        self._last = time.monotonic()
        minutes, seconds = divmod(int(self._last - self._start), 60)
        text = f"[{minutes}:{seconds:02d}] {text}"
        if self._is_terminal:
            self._stream.write(_ERASE_LINE + text)
            self._is_open = True
        else:
            self._stream.write(text + "\n")
        self._stream.flush()
