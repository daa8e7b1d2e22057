from hypothesis import settings

# A shared machine pauses now and then: time is not what these properties are about.
settings.register_profile("forage", deadline=None)
settings.load_profile("forage")
