"""Rows of the suites on which every field is equal where methods do not differ by design."""

from collections.abc import Mapping

from experiments.benchmark.suite import Row

KEPT = {"data.filter": "judgement", "data.filter_value": 0.5}
SPLITTING = ("l2rm", "rcsl_nc", "decl", "ncr", "bicro", "sps", "cream")
PUBLISHED = ("rcl", "crcl", *SPLITTING)  # each with its own way to find mismatched pairs
CLOSED_FORM = ("cca", "cca weighted", "cca rematched")
RECIPE = {"method": "infonce", "model.head": "linear"}
RECIPES = {
    "recipe linear": Row(RECIPE, "crossfit", config="recipes:linear"),
    "recipe linear x2": Row(RECIPE, "crossfit", config="recipes:recall"),
}


def _rows() -> Mapping[str, Row]:
    infonce = {"method": "infonce"}
    rows = {
        "cca": Row({"method": "cca"}),
        "cca weighted": Row({"method": "cca", "train.draw": "judgement"}, "crossfit"),
        "cca rematched": Row({"method": "cca", "train.draw": "rematched"}, "crossfit"),
        "triplet": Row({"method": "triplet"}),
        "infonce": Row(infonce),
        "infonce x2": Row({**infonce, "train.networks": 2}),
        "infonce kept": Row({**infonce, **KEPT}, "crossfit", drops=True),
        "infonce rematched": Row({**infonce, "train.draw": "rematched"}, "crossfit"),
        "truth": Row({**infonce, "data.filter": "truth"}, "truth", drops=True),
        "rcl": Row({"method": "rcl"}),
        # Each schedule starts again: the last one has as many epochs as the other methods.
        "crcl": Row({"method": "crcl", "crcl.schedules": (2, 2)}),
    }
    for method in SPLITTING:
        rows[method] = Row({"method": method}, "loss")
        rows[f"{method} crossfit"] = Row({"method": method, "split.by": "judgement"}, "crossfit")
    rows["l2rm x2"] = Row({"method": "l2rm", "train.networks": 2}, "loss")
    return rows


ROWS = _rows()
DEEP = tuple(name for name in ROWS if name not in CLOSED_FORM)  # rows that go with every head
