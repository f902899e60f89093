"""The command line `python -m keras_sa.analysis`, in parts."""
