"""The commands of `forage`."""
