"""Policies: a rule, a head and perhaps a net each (`service.bandits.kinds.kinds`)."""
