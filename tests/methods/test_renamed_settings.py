"""Run folders of earlier versions, whose settings had other names, are still read."""

import json

import numpy as np
import pytest

from phenogroups.methods import Method, build_method, load, name_of, settings_of
from phenogroups.methods.registry import RENAMED
from phenogroups.training.run import RunError, write_model

QUICK = {"epochs": 1, "steps": 1, "restarts": 1}


def saved(method: Method, folder, rename) -> None:
    settings = json.loads(rename(json.dumps(settings_of(method))))
    shape = list(method.input_shape_)
    write_model(folder, {"method": name_of(method), "settings": settings, "input_shape": shape}, method.state())


def in_old_names(text: str) -> str:
    for old, new in RENAMED.items():
        assert f'"{new}"' in text
        text = text.replace(f'"{new}"', f'"{old}"')
    return text


@pytest.mark.parametrize(
    "method",
    [
        build_method("deep_ucsl", {**QUICK, "recalibrate_batch_norm": False}),
        build_method("consensus", {"runs": 2, "settings": {**QUICK, "recalibrate_batch_norm": False}}),
    ],
    ids=name_of,
)
def test_old_names_are_read(features, tmp_path, method):
    method.fit(features)
    saved(method, tmp_path, in_old_names)
    found = load(tmp_path)
    assert settings_of(found) == settings_of(method)
    np.testing.assert_array_equal(found.predict_subgroup(features), method.predict_subgroup(features))


def test_unknown_names_are_refused(features, tmp_path):
    method = build_method("deep_ucsl", QUICK).fit(features)
    saved(method, tmp_path, lambda text: text.replace("recalibrate_batch_norm", "forgotten"))
    with pytest.raises(RunError, match="Received: forgotten"):
        load(tmp_path)
