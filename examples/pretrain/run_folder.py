"""The folder of a run: what it was asked for, and what came of it."""

import json
import pathlib
import shlex
import shutil
import sys

from examples.pretrain import checkpoint
from keras_sa import hub

_SETTINGS = "run.json"
_SUMMARY = "summary.json"
_README = "README.md"
_PRESET = "preset"
# Arguments that change no number of the run.
_FREE = ("output", "dry_run", "tensorboard")


class RunFolder:
    """A run in its folder.

    Args:
        folder: path.
    """

    def __init__(self, folder):
        self.folder = folder
        self.tokenizer = folder / "tokenizer"
        self.checkpoints = folder / "checkpoints"
        self.log = folder / "log.csv"
        self.tensorboard = folder / "tensorboard"
        self.preset = folder / _PRESET

    def claim(self, arguments, documents):
        """Begins a run, or goes on with it if it is the same one.

        What has no checkpoint yet is no loss, and begun anew.

        Args:
            arguments: of the command line, with all defaults.
            documents: what `describe()` of the training documents says.
        """
        settings = _settings(arguments, documents)
        path = self.folder / _SETTINGS
        before = json.loads(path.read_text()) if path.is_file() else None
        if before == settings:
            return
        if before is not None and any(self.checkpoints.glob("*")):
            raise SystemExit(_what_differs(before, settings, self.folder))
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.tokenizer, ignore_errors=True)
        self._write(_SETTINGS, json.dumps(settings, indent=2))

    def keep(self, model, preprocessor, summary):
        """Keeps the trained model as a preset, with the command beside it.

        Args:
            model: a `CausalLM`, under `swap_attention` or not.
            preprocessor: for the preset, or `None`.
            summary: dict for a JSON file.
        """
        partial = self.folder / f"{_PRESET}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        model.preprocessor = preprocessor
        if hub.current_swap(model) is None:
            model.save_to_preset(str(partial))
        else:
            hub.save_to_preset(model, partial)
        model.preprocessor = None
        shutil.rmtree(self.preset, ignore_errors=True)
        partial.rename(self.preset)
        command = shlex.join(["python", *sys.argv])
        summary = {"command": command, **summary}
        self._write(_SUMMARY, json.dumps(summary, indent=2))
        self._write(_README, _readme(summary, hub.current_swap(model)))

    def _write(self, name, text):
        checkpoint.write_whole(
            self.folder / name, lambda file: file.write(f"{text}\n".encode())
        )


def _settings(arguments, documents):
    chosen = {k: v for k, v in vars(arguments).items() if k not in _FREE}
    settings = {"arguments": chosen, "documents": documents}
    # As JSON brings it back.
    return json.loads(json.dumps(settings, default=_as_text, sort_keys=True))


def _as_text(path):
    if not isinstance(path, pathlib.Path):
        raise TypeError(f"A path is expected. Received: {path!r}")
    return str(path.resolve())


def _what_differs(before, now, folder):
    differences = [
        f"{name}: {old.get(name)} before, {new.get(name)} now"
        for old, new in (
            (before[part], now[part]) for part in ("arguments", "documents")
        )
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    return (
        f"The arguments of the run in {folder} are expected, or another "
        f"--output. Received: {'; '.join(differences)}"
    )


def _readme(summary, swap):
    load = (
        "keras_hub.models.CausalLM.from_preset"
        if swap is None
        else "keras_sa.hub.from_preset"
    )
    return "\n".join(
        [
            "# A model that was trained from scratch",
            "",
            "```bash",
            summary["command"],
            "```",
            "",
            *(
                f"- {name.replace('_', ' ')}: {value}"
                for name, value in summary.items()
                if name != "command"
            ),
            "",
            f'Load it: `{load}("{_PRESET}")`. The loss over the steps is in '
            "log.csv.",
        ]
    )
