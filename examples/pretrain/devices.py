"""Training on all devices of a machine."""

import keras


def use_all(batch_size):
    """Cuts every batch up between the devices; models come afterwards.

    Args:
        batch_size: sequences of a batch.
    """
    if keras.config.backend() != "jax":
        raise SystemExit(
            "--data-parallel expects --backend jax, where Keras distributes "
            f"`fit`. Received: --backend {keras.config.backend()}"
        )
    devices = keras.distribution.list_devices()
    if len(devices) < 2:
        raise SystemExit(
            "--data-parallel expects more than one device. Received: "
            f"{', '.join(map(str, devices))}"
        )
    if batch_size % len(devices):
        raise SystemExit(
            f"--batch-size is expected to be a multiple of {len(devices)}, the "
            f"number of devices. Received: --batch-size {batch_size}"
        )
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=devices)
    )
