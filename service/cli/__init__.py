"""The commands of `forage`, a module each, by name."""

from service.cli import (
    audit,
    backup,
    check,
    doctor,
    evaluate,
    export,
    import_,
    init,
    keys,
    openapi,
    rebuild,
    repair,
    restore,
    serve,
    train,
)

GROUPS = ("Start", "Learn and compare", "Look after the log", "Operate")
"""Headings of `forage --help`, in order; each command names its own."""

COMMANDS = {
    "serve": serve.COMMAND,
    "init": init.COMMAND,
    "check": check.COMMAND,
    "train": train.COMMAND,
    "evaluate": evaluate.COMMAND,
    "audit": audit.COMMAND,
    "export": export.COMMAND,
    "import": import_.COMMAND,
    "backup": backup.COMMAND,
    "restore": restore.COMMAND,
    "repair": repair.COMMAND,
    "rebuild": rebuild.COMMAND,
    "doctor": doctor.COMMAND,
    "keys": keys.COMMAND,
    "openapi": openapi.COMMAND,
}
