"""What has been in orbit around the Earth: payloads, rocket bodies and debris, told apart by their orbits."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from .sampling import split_by_group

FILE = Path(__file__).with_name("satellites_2016.csv.gz")
SHA256 = "16d04a7ba01d54b87014b2b721e6e738288fd523d0143d29fb520bf8c563e7a7"
COUNTS = {"rows": 18184, "fragments": 136}
# Payloads with one of these words in the name are parts of something: coolant and fuel cores of reactors, a cover,
# the structures that carried a payload. Needles, calibration cones and rods, and dummy masses are payloads.
FRAGMENTS = ("COOLANT", "FUEL CORE", "COVER", "STRONGBACK", "TRUSS", "PLAT")  # 118 + 13 + 1 + 1 + 1 + 2 = 136
LOGARITHMIC = ("period_min", "perigee_km", "apogee_km")


def satellites():
    """Load 18,048 objects of the catalogue of Earth orbit of February 2016.

    Columns: norad (catalogue number, unique), cospar (designator), name, type (DEBRIS 10,964, PAYLOAD 5,256,
    ROCKET BODY 1,828), country, site, launch (date), orbit_class, period_min, perigee_km, apogee_km, incl_deg
    (degrees), rcs_m2 (radar cross section, 0 = not given, as for 9 in 10) and launch_id, the first 8 characters
    of cospar: which launch an object came from.

    The file has 18,184 rows: 136 payloads that are fragments by name (`FRAGMENTS`) are left out. orbit_class
    is derived from the orbit. Fragments of one break-up share an orbit, launch 1999-025 alone has 2,891
    objects, so a random split flatters every model: use `split_by_launch`.

    Not all of them were still up: the payloads include many that had come down long before, among them 134
    flights of the space shuttle. So 1,323 payloads have a period below 92 minutes, and only 68 other objects:
    a low orbit gives a payload away.

    Raises `RuntimeError` when the file is not the one of the package.

    Source: the US satellite catalogue (facts of the US government), as distributed with Debian's previsat
    3.5.1.7; details in satellites_2016.md beside the file.
    """
    try:
        content = FILE.read_bytes()
    except OSError as error:
        raise RuntimeError(f"cannot read {FILE} of this package ({error}). Install ddcl_lite again.") from error
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise RuntimeError(
            f"the file {FILE} of this package has been altered or is incomplete. Install ddcl_lite again.\n"
            f"expected sha256 {SHA256}\n"
            f"found    sha256 {found}"
        )
    frame = pd.read_csv(io.BytesIO(content), compression="gzip")
    fragment = (frame["type"] == "PAYLOAD") & frame["name"].str.contains("|".join(FRAGMENTS))
    counts = {"rows": len(frame), "fragments": int(fragment.sum())}
    if counts != COUNTS:
        raise RuntimeError(f"the satellites file has the counts {counts}, expected {COUNTS}")
    frame = frame[~fragment].reset_index(drop=True)
    return frame.assign(launch_id=frame["cospar"].str[:8])


def split_by_launch(frame, test_share=0.3, seed=0):
    """Split objects into train and test so that no launch has objects on both sides.

    frame: rows of `satellites()`, n of them, with the column launch_id.
    test_share: share of the launches for the test side, strictly between 0 and 1. The share of the objects
        differs a lot with the seed: a few launches have thousands of fragments each.
    seed: of the draw, on the CPU: the same on every device.
    Returns (train, test): ascending int64 positions (for `frame.iloc`), (n_train,) and (n_test,), together all n.

    Raises `ValueError` when frame is no data frame, lacks the column or a value of it, and as `split_by_film`.

    Source: ours.
    """
    _check_columns(frame, ["launch_id"])
    launches, _ = pd.factorize(frame["launch_id"], sort=True)  # (n,)
    return split_by_group(launches, test_share, seed, name="launches")


def orbit_features(frame, reference=None):
    """The orbit as four numbers an object: log period, log perigee, log apogee and inclination, standardised.

    Each column is x -> (x - mean) / standard deviation; a column without spread becomes 0.

    frame: rows of `satellites()`, n of them. Logarithms are natural, of minutes and kilometres above ground.
    reference: the rows that mean and standard deviation are taken from, None for those of frame. Give the
        training rows for both sides of a split.
    Returns (n, 4) float64.

    No perigee of `satellites()` is 0 or below: the lowest is 5 km, of an object about to burn up.

    Raises `ValueError` that names the column which is missing, not of numbers, NaN or infinite somewhere, or,
    for the logarithms, 0 or below; and for a frame without rows.

    Source: ours.
    """
    values = _orbits(frame, "frame")
    known = values if reference is None else _orbits(reference, "reference")
    mean, deviation = known.mean(0), known.std(0)  # (4,)
    flat = deviation < 1e-12 * np.maximum(np.abs(mean), 1)  # what rounding leaves of no spread at all
    scaled = np.where(flat, 0.0, (values - mean) / np.where(flat, 1.0, deviation))
    return torch.from_numpy(scaled)


def _orbits(frame, what):
    names = [*LOGARITHMIC, "incl_deg"]
    _check_columns(frame, names, what)
    columns = []
    for name in names:
        try:
            values = frame[name].to_numpy(dtype=float)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{what} has the column {name} of type {frame[name].dtype}, expected numbers") from error
        if np.isinf(values).any():
            raise ValueError(f"{what} has {np.isinf(values).sum()} infinite values in the column {name}")
        if name in LOGARITHMIC and (values <= 0).any():
            raise ValueError(
                f"{what} has {(values <= 0).sum()} values of 0 or below in the column {name}, expected above 0: "
                "its logarithm is taken"
            )
        columns.append(np.log(values) if name in LOGARITHMIC else values)
    return np.stack(columns, axis=1)  # (n, 4)


def _check_columns(frame, names, what="frame"):
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(f"{what} is a {type(frame).__name__}, expected a data frame as of satellites()")
    if len(frame) == 0:
        raise ValueError(f"{what} has no rows, expected at least one")
    for name in names:
        if name not in frame.columns:
            raise ValueError(f"{what} has no column {name}, expected one as of satellites()")
        if frame[name].isna().any():
            raise ValueError(f"{what} has {frame[name].isna().sum()} NaN values in the column {name}, expected none")
