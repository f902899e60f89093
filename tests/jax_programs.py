"""Reads what a JAX program computes on its way."""


def sub_programs(value):
    """The programs inside a parameter of an equation."""
    if hasattr(value, "eqns"):
        yield value
    elif hasattr(value, "jaxpr"):
        yield from sub_programs(value.jaxpr)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from sub_programs(item)


def intermediates(program):
    """Shapes of everything that is computed, at any depth."""
    for equation in program.eqns:
        for variable in equation.outvars:
            yield tuple(variable.aval.shape)
        for value in equation.params.values():
            for inner in sub_programs(value):
                yield from intermediates(inner)
