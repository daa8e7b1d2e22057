"""Experiments: the states that requests name."""

from service.errors import Gone, Invalid, NotFound
from service.log.replicas import Replicas
from service.naming import listed, not_found, quoted
from service.retrieval.shortlists import applies
from service.settings import Settings
from service.state.fold import State

FEW_ARMS, COMPARED_PER_ARM = 100, 12
"""Arms up to which looking at a catalogue costs nothing, and how many arms a search compares for
each that it is to find."""


def expect_present(state: State, schema_version: int) -> None:
    """Raise Gone for a decision, made under this schema, of an experiment that was deleted."""
    if state.deleted or schema_version < state.first_schema:
        raise Gone("the experiment of this decision was deleted")


class Experiments:
    """Finds the experiment of a request."""

    def __init__(self, replicas: Replicas, settings: Settings) -> None:
        self._replicas, self._settings = replicas, settings

    def resolve(self, name: str | None) -> str:
        """Return the name of an experiment, or the default one, or the only one. Raises Invalid
        where a name is needed."""
        if (known := name or self._settings.default_experiment) is not None:
            return known
        names = self._replicas.names
        if len(names) == 1:
            return names[0]
        several = "name the experiment: FORAGE_DEFAULT_EXPERIMENT names none"
        say = f"{several}{self._choices}" if names else "there is none yet"
        raise Invalid(say, path="experiment")

    def served(self, name: str | None) -> State | None:
        """Return a served experiment; None where this process has not heard of it yet. Raises
        Invalid where the name is needed, or Quarantined."""
        return self._replicas.state(self.resolve(name))

    async def find(self, name: str | None) -> State:
        """Find an experiment like `served`, also one that is new to this process. Raises NotFound,
        too."""
        asked, name = name, self.resolve(name)
        state = self._replicas.state(name)
        if state is None:
            state = await self._replicas.discover(name)
            if state.deleted:
                raise self.unknown(asked)
        return state

    async def current(self, name: str | None) -> State:
        """Find an experiment like `find`, with all that other processes have appended, if the log
        can be read."""
        await self._replicas.catch_up(self.resolve(name))
        return await self.find(name)

    async def find_past(self, name: str) -> State:
        """Find an experiment like `current`, also one that was deleted. Raises NotFound."""
        await self._replicas.catch_up(name)
        state = await self._replicas.discover(name)
        if state.position == 0:
            raise self.unknown(name)
        return state

    def most_candidates(self, name: str | None) -> int:
        """Return how many arms a decision compares at most where a request names none."""
        replicas = self._replicas
        state = replicas.state(name) if name else next(iter(replicas.states.values()), None)
        if state is None or len(state.rows) <= FEW_ARMS:
            return 0 if state is None else len(state.rows)
        found = [
            min(len(state.rows), COMPARED_PER_ARM * learner.policy.retrieve)
            if applies(state, learner.policy) and learner.policy.retrieve
            else len(state.rows)
            for learner in state.learners.values()
        ]
        return max(found)

    @property
    def _choices(self) -> str:
        """The end of a message: a caller with a key may see those of its key alone."""
        if self._settings.keys is not None:
            return "; GET /experiments lists them"
        return f"; there are: {listed(self._replicas.names)}"

    def unknown(self, asked: str | None) -> NotFound:
        """Say that there is no such experiment. asked: the name in the request; None: it has the
        default one."""
        name = self.resolve(asked)
        if asked is None:
            say = f"FORAGE_DEFAULT_EXPERIMENT names {quoted(name)}, which does not exist"
            return NotFound(f"{say}: name the experiment{self._choices}", path="experiment")
        if self._settings.keys is not None:
            say = f"there is no experiment {quoted(name)}{self._choices}"
            return NotFound(say, path="experiment")
        return not_found("experiment", name, self._replicas.names)
