"""Phi-3."""

from keras_sa.hub.families.family import Family

PHI3 = Family("Phi3Decoder", attention="attention")
