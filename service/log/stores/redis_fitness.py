"""Whether a Redis may hold a log, and what an acknowledged write survives there."""

from collections.abc import Mapping


def unfit(info: Mapping[str, object]) -> str | None:
    """Why this Redis (INFO) must not hold a log; None: it may."""
    version = str(info.get("redis_version", "7"))
    if int(version.partition(".")[0]) < 7:
        return f"this is Redis {version}; 7.0 or newer is needed"
    if info.get("redis_mode") == "cluster":
        return "this is a Redis cluster; one primary (with replicas) is needed"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return f"maxmemory-policy is {policy}: a full Redis would drop rewards; set noeviction"
    return None


LEAST_REPLICAS = "min-replicas-to-write"


def durability(configuration: Mapping[str, str], replicas: int = 0) -> str:
    """Say what CONFIG GET append* and min-replicas-to-write, and replicas, mean for an acknowledged
    write."""
    if replicas:
        own, least = durability(configuration), int(configuration.get(LEAST_REPLICAS, replicas))
        text = f"{own} {replicas} of its replicas hold it before it is acknowledged."
        if least < replicas:
            text += f" A Redis that was replaced goes on to take writes ({LEAST_REPLICAS} {least})."
        return text
    if not configuration:
        return "Unknown: this Redis does not tell how it keeps writes (CONFIG GET is refused)."
    if configuration.get("appendonly") != "yes":
        return "An acknowledged write is lost when Redis stops (appendonly no)."
    match configuration.get("appendfsync"):
        case "always":
            return "An acknowledged write survives kill -9 and power loss of the Redis host."
        case "everysec":
            return "Up to about 2 s of acknowledged writes are lost with the Redis host."
        case other:
            return f"Acknowledged writes are lost with the Redis host (appendfsync {other})."
