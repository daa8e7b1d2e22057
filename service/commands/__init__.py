"""The commands of `forage` beside `serve`, a module each, by name."""

from service.commands import audit, backup, export, import_, openapi, restore, train

COMMANDS = {
    "train": train.COMMAND,
    "audit": audit.COMMAND,
    "export": export.COMMAND,
    "import": import_.COMMAND,
    "backup": backup.COMMAND,
    "restore": restore.COMMAND,
    "openapi": openapi.COMMAND,
}
