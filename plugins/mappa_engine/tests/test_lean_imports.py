import sys

from transformers import utils

from mappa_engine.lean_imports import import_transformers

GENERATOR = "transformers.generation.candidate_generator"


def test_transformers_is_imported_without_scikit_learn(monkeypatch):
    monkeypatch.delitem(sys.modules, GENERATOR, raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)  # whoever imports it fails
    monkeypatch.setattr(utils, "is_sklearn_available", known := lambda: True)
    import_transformers()
    assert GENERATOR in sys.modules and utils.is_sklearn_available is known
