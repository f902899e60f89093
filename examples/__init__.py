"""What was run to learn something; a script puts the folder above on the path.

Every example has a command line, `run.py` or the like, which imports no Keras:
that chooses its backend when it is imported.
"""
