"""Space debris: which families of orbits prototypes find in a catalogue.

`python -m ddcl_lite.experiments.debris` runs the full scale of this module and of `debris_types`,
and stores the results.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, confusion_matrix, normalized_mutual_info_score
from sklearn.mixture import GaussianMixture
from torch import Tensor

from ..data import orbit_features
from ..data.satellites import LOGARITHMIC
from ..prototypes.assignment import squared_distances
from ..prototypes.loss import critical_temperature
from ..prototypes.training import draw_prototypes, schedule
from ..prototypes.training import fit as descend
from .annealing import anneal, hard_cost

EARTH, GRAVITY = 6378.137, 398600.4418  # equatorial radius in km, gravitational parameter in km^3/s^2
ORBIT = [*LOGARITHMIC, "incl_deg"]  # the four columns that `orbit_features` takes
TYPES = 3  # payload, rocket body, debris
COLDEST = 0.005  # T/T_c at which cooling ends, set by hand: low orbits lie close together, and split late


def kepler_period(perigee, apogee):
    """Period in minutes of an orbit with these heights in km above the equator's radius R, by Kepler's third law.

    P = 2 pi sqrt(a^3 / GM), a = R + (perigee + apogee) / 2

    Numbers or arrays. Chapter 10.
    """
    return 2 * np.pi * np.sqrt((EARTH + (perigee + apogee) / 2) ** 3 / GRAVITY) / 60


def orbit_name(orbits: pd.DataFrame) -> np.ndarray:
    """The family an orbit belongs to, by the first rule that fits: an array of strings, one a row.

    orbits: columns period_min P, perigee_km, apogee_km, incl_deg i. With a the semi-major axis, e the eccentricity:
    beyond geosynchronous P > 1500; geosynchronous P > 1380, e < 0.1; Molniya 600 < P < 750, e > 0.5, i within 4 of
    63.4; geostationary transfer: apogee 30,000 to 42,000, perigee < 10,000; navigation 600 < P < 900, e < 0.1. Low is
    P < 120: sun-synchronous, i within 3 degrees of the one at which the Earth's flattening turns the orbit's plane
    once a year, cos i = -(a / 12,352 km)^3.5 (1 - e^2)^2; polar, within 5 of 90; equatorial, i < 20; retrograde,
    i > 95; else inclined. What is left is elliptical, e > 0.25, or medium.

    The thresholds are ours, those on P and i chosen to agree with the catalogue's orbit_class. Chapter 10.
    """
    period, perigee, apogee, incl = (orbits[name].to_numpy(dtype=float) for name in ORBIT)
    axis = EARTH + (perigee + apogee) / 2
    eccentricity = (apogee - perigee) / (2 * axis)
    turning = np.degrees(np.arccos(np.clip(-((axis / 12352) ** 3.5) * (1 - eccentricity**2) ** 2, -1, 1)))
    round_, low = eccentricity < 0.1, period < 120
    rules = {
        "beyond geosynchronous": period > 1500,
        "geosynchronous": (period > 1380) & round_,
        "Molniya": (period > 600) & (period < 750) & (eccentricity > 0.5) & (np.abs(incl - 63.4) < 4),
        "geostationary transfer": (apogee > 30000) & (apogee < 42000) & (perigee < 10000),
        "navigation": (period > 600) & (period < 900) & round_,
        "low, sun-synchronous": low & (np.abs(incl - turning) < 3),
        "low, polar": low & (np.abs(incl - 90) <= 5),
        "low, equatorial": low & (incl < 20),
        "low, retrograde": low & (incl > 95),
        "low, inclined": low,
        "elliptical": eccentricity > 0.25,
    }
    return np.select(list(rules.values()), list(rules), "medium")


def to_orbits(bank: Tensor, frame: pd.DataFrame) -> pd.DataFrame:
    """Prototypes (K, 4) of `orbit_features(frame)` in minutes, km and degrees: the standardisation undone."""
    values = frame[ORBIT].to_numpy(dtype=float)
    values[:, :3] = np.log(values[:, :3])
    raw = bank.cpu().numpy() * values.std(0) + values.mean(0)
    raw[:, :3] = np.exp(raw[:, :3])
    return pd.DataFrame(raw, columns=ORBIT)


def nearest(tokens: Tensor, bank: Tensor) -> np.ndarray:
    """The nearest prototype of each token: (N, D), (K, D) -> (N,)."""
    return squared_distances(tokens, bank).argmin(-1).cpu().numpy()


def families(frame: pd.DataFrame, bank: Tensor) -> pd.DataFrame:
    """One row per prototype (K, 4), shortest period first: its orbit, its name, and what its objects are.

    name: of the prototype's own orbit, by `orbit_name`; "so named": the share of its objects with that name. excess:
    its period over that of Kepler's law for its perigee and apogee, minus 1. Shares of the types; the launch with most
    of its objects, and that launch's share. A prototype without objects has NaN there.
    """
    members = nearest(orbit_features(frame), bank.double().cpu())
    table = to_orbits(bank, frame)
    table["excess"] = table["period_min"] / kepler_period(table["perigee_km"], table["apogee_km"]) - 1
    table["name"], names, rows = orbit_name(table), orbit_name(frame), []
    for index, name in enumerate(table["name"]):
        inside = members == index
        own = frame[inside]
        row = {"objects": len(own), "so named": (names[inside] == name).mean() if len(own) else np.nan}
        for kind in ("DEBRIS", "PAYLOAD", "ROCKET BODY"):
            row[kind.lower()] = (own["type"] == kind).mean()
        launches = own["launch_id"].value_counts(normalize=True)
        row |= {"launch": launches.index[0], "its share": launches.iloc[0]} if len(own) else {}
        rows.append(row)
    return pd.concat([table, pd.DataFrame(rows)], axis=1).sort_values("period_min", ignore_index=True)


def matched_accuracy(types, labels) -> float:
    """Share of right answers when clusters are matched one to one with the types in the best way (Hungarian)."""
    table = confusion_matrix(np.unique(types, return_inverse=True)[1], labels)
    rows, columns = linear_sum_assignment(-table)
    return table[rows, columns].sum() / len(labels)


def compare_clusterings(
    frame: pd.DataFrame,
    num_clusters: int,
    starts: int = 5,
    seed: int = 0,
    methods: Sequence[str] | None = None,
    progress: Callable = iter,
) -> pd.DataFrame:
    """Six ways (or those named) to cluster the objects by their orbits, from `starts` starts each: one row a run.

    Prototypes annealed (q detached, to COLDEST) from random tokens; prototypes trained by 200 steps of Adam on L_q from
    the same tokens (q detached, T from 0.01 to 0.001 T_c: of three schedules that of the lowest cost); K-means, one run
    of k-means++ or the best of ten or 100 (about annealing's time, or less); a Gaussian mixture.
    accuracy: `matched_accuracy` with the types; purity: of the majority type of each cluster; nmi, ari; cost: mean
    squared distance to the nearest centre over the token variance (a mixture: to its means); agreement: mean ARI with
    the same method's other runs; high: centres of a period above 120 minutes; seconds of processor time. Raises
    ValueError for fewer than two starts and for an unknown method. Source: ours; chapter 10.
    """
    if starts < 2:
        raise ValueError(f"starts: expected 2 or more, to be compared with each other, got {starts}")
    tokens, types = orbit_features(frame), frame["type"].to_numpy()
    array, generator = tokens.numpy(), torch.Generator().manual_seed(seed)
    critical = critical_temperature(tokens, detach_assignment=True)
    cooling = critical * schedule(200, 0.01, 0.001)
    banks = [draw_prototypes(tokens, num_clusters, generator=generator) for _ in range(starts)]
    adam = {"lr": 0.05, "optimiser": torch.optim.Adam, "detach_assignment": True, "every": 200}
    known = {
        "annealed prototypes": lambda i: anneal(tokens, num_clusters, banks[i][None], end=COLDEST)[0],
        "prototypes by descent": lambda i: descend(tokens, banks[i], cooling, **adam).prototypes,
        "K-means": lambda i: KMeans(num_clusters, n_init=1, random_state=100 * seed + i).fit(array),
        "K-means, best of ten": lambda i: KMeans(num_clusters, n_init=10, random_state=100 * seed + i).fit(array),
        "K-means, best of 100": lambda i: KMeans(num_clusters, n_init=100, random_state=100 * seed + i).fit(array),
        "Gaussian mixture": lambda i: GaussianMixture(num_clusters, random_state=100 * seed + i).fit(array),
    }
    methods = list(known) if methods is None else list(methods)
    if not set(methods) <= set(known):
        raise ValueError(f"methods: expected some of {', '.join(known)}, got {methods}")
    rows, labels = [], {}
    for method, index in progress([(name, i) for name in methods for i in range(starts)]):
        begin = time.process_time()
        model = known[method](index)
        seconds = time.process_time() - begin
        if isinstance(model, Tensor):
            bank = model
        else:
            bank = torch.from_numpy(model.cluster_centers_ if hasattr(model, "cluster_centers_") else model.means_)
        parts = model.predict(array) if isinstance(model, GaussianMixture) else nearest(tokens, bank)
        labels[method, index] = parts
        table = confusion_matrix(np.unique(types, return_inverse=True)[1], parts)
        rows.append({"method": method, "start": index, "accuracy": matched_accuracy(types, parts)})
        rows[-1] |= {"purity": table.max(0).sum() / len(parts), "nmi": normalized_mutual_info_score(types, parts)}
        rows[-1] |= {"ari": adjusted_rand_score(types, parts), "cost": hard_cost(tokens, bank[None]).item()}
        rows[-1] |= {"high": int((to_orbits(bank, frame)["period_min"] > 120).sum()), "seconds": seconds}
    for row in rows:
        others = [labels[row["method"], i] for i in range(starts) if i != row["start"]]
        row["agreement"] = np.mean([adjusted_rand_score(labels[row["method"], row["start"]], o) for o in others])
    return pd.DataFrame(rows).assign(K=num_clusters, objects=len(frame))


def summarise_clusterings(table: pd.DataFrame) -> pd.DataFrame:
    """Means over starts per K and method; the range of the accuracy, and the lowest and highest cost.

    NaN for the accuracy of more clusters than TYPES: matched one to one, the others would be wrong by definition.
    """
    table = table.assign(accuracy=table["accuracy"].where(table["K"] <= TYPES))
    groups = table.groupby(["K", "method"], sort=False)
    accuracy, cost = groups["accuracy"], groups["cost"]
    columns = {"accuracy": accuracy.mean(), "accuracy range": accuracy.max() - accuracy.min()}
    columns |= {name: groups[name].mean() for name in ("nmi", "ari", "cost")}
    columns |= {"lowest cost": cost.min(), "highest cost": cost.max()}
    columns |= {name: groups[name].mean() for name in ("agreement", "high", "purity", "seconds")}
    return pd.DataFrame(columns)


if __name__ == "__main__":
    from ..data import satellites
    from ..notebook import progress, setup
    from .debris_types import LARGER, compare_classifiers
    from .results import store

    device, frame, command = setup(0, "full"), satellites(), f"python -m {__spec__.name}"
    objects = {"objects": len(frame)}
    runs = [compare_clusterings(frame, count, 10, progress=progress(f"K = {count}")) for count in (3, 12)]
    print(store("debris_clusters", pd.concat(runs), objects | {"starts": 10}, device, command))
    table = compare_classifiers(frame, range(10), candidates=3, progress=progress("classifiers"))
    print(store("debris", table, objects | {"candidates": 3}, device, command))
    table = compare_classifiers(frame, range(10), 4, [LARGER], ["by launch"], progress=progress("larger"))
    print(store("debris_larger", table, objects | {"candidates": 4}, device, command))
