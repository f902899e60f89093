"""One file for each family of KerasHub's decoders."""
