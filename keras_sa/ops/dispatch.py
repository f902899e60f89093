"""Choose one implementation of an op from a plain table.

Every implementation module has two functions with the same argument:
`why_not(arguments)` returns a sentence when it cannot do the job, else `None`,
and `forward(arguments)` does it. A module that can do more than it should be
chosen for has a third, `by_default(arguments)`: where that is false, it runs
only when it is named.
"""


def choose(table, implementation, arguments):
    """Returns the module that will run.

    Args:
        table: dict of name to module, in order of preference.
        implementation: `None` for the first module without an objection
            that runs by default, or a name from the table. A named module
            never falls back.
        arguments: what `why_not` and `forward` receive.

    Returns:
        A module of the table.

    Raises:
        ValueError: when the name is unknown, or nothing can do the job.
    """
    check_name(table, implementation)
    if implementation is None:
        return _first_without_objection(table, arguments)
    module = table[implementation]
    objection = module.why_not(arguments)
    if objection is not None:
        raise ValueError(
            f"{objection} Pass implementation=None to let another one run. "
            f"Received: implementation={implementation!r}"
        )
    return module


def check_name(table, implementation):
    if implementation is not None and implementation not in table:
        raise ValueError(
            f"`implementation` is expected to be None or one of {sorted(table)}"
            f". Received: implementation={implementation!r}"
        )


def _first_without_objection(table, arguments):
    objections = {}
    for name, module in table.items():
        objections[name] = _why_not_unnamed(module, arguments)
        if objections[name] is None:
            return module
    raise ValueError(
        "No implementation can do this. Received objections: "
        + " ".join(f"{name}: {text}" for name, text in objections.items())
    )


def _why_not_unnamed(module, arguments):
    objection = module.why_not(arguments)
    by_default = getattr(module, "by_default", None)
    if objection is None and by_default and not by_default(arguments):
        return "Here it runs only when it is named."
    return objection
