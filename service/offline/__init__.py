"""Work on a whole log beside a service, which never imports it: audit, archive, backup, rebuild."""
