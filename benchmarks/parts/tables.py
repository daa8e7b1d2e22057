"""What is kept, as rows of cells: for the terminal and for the page."""

from benchmarks.tables import Json

Cells = list[list[str]]


def folding(found: Json) -> Cells:
    """Events a second, and the ratio to the plain numpy of the same head."""
    heads = [f"{size} columns: a second (ratio)" for size in found["columns"]]
    rows = [["policy", "floor", *heads]]
    for kind, told in found["policies"].items():
        figures = [
            f"{row['events_per_second']:,.0f} ({row['ratio']:.1f})"
            for row in told["by_columns"].values()
        ]
        rows.append([kind, told["floor"], *figures])
    return rows


def snapshots(found: Json) -> Cells:
    rows = [["in it", "size, kB", "encode, ms", "save, ms", "load, ms"]]
    for name, row in found.items():
        steps = [f"{row[step]:,.1f}" for step in ("encode_ms", "save_ms", "load_ms")]
        rows.append([name, f"{row['bytes'] / 1e3:,.0f}", *steps])
    return rows


def recovery(found: Json) -> Cells:
    rows = [[f"{found['events']:,} events", "seconds", "events a second"]]
    for name, row in found["ways"].items():
        rows.append([name, f"{row['seconds']:.2f}", f"{row['events_per_second']:,.0f}"])
    return rows


def training(found: Json) -> Cells:
    rows = [
        ["window", "passes", "steps", "steps a second", "fit, s", "train, s", "publish, s",
         "artifact, kB"]
    ]  # fmt: skip
    for window, row in found.items():
        counts = [f"{row[name]:,.0f}" for name in ("passes", "steps", "steps_per_second")]
        seconds = [f"{row[name]:.2f}" for name in ("fit_s", "train_s", "publish_s")]
        rows.append([f"{int(window):,}", *counts, *seconds, f"{row['artifact_bytes'] / 1e3:,.0f}"])
    return rows


TABLES = {
    "folding": folding,
    "snapshots": snapshots,
    "recovery": recovery,
    "training": training,
}
