"""Changes that people make: definitions, arms, versions, imports, erasures; and retention."""
