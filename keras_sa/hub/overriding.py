"""Methods of one instance's own.

A swapped layer gets a class of its own, made for it: a subclass of its class
under the same name, since names of classes are in checkpoints. Undoing is
giving it its class back. Models get attributes instead: Keras makes and looks
up models by their class.
"""


def override_methods(instance, members):
    """Gives one layer its own methods and properties."""
    base = type(instance)
    namespace = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        **members,
    }
    _set_class(instance, type(base)(base.__name__, (base,), namespace))


def restore_methods(instance):
    """Undoes `override_methods`."""
    _set_class(instance, type(instance).__bases__[0])


def _set_class(instance, cls):
    # Not `instance.__class__ =`: Keras layers track what is set on them.
    object.__setattr__(instance, "__class__", cls)
