"""The notebook in examples/ runs unchanged in its own kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.doc_blocks import ROOT

pytestmark = pytest.mark.spark

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def test_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), (
        "the notebook is stored with outputs"
    )
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    tables = [html for html in map(_html, shown) if "<table" in html]
    assert len(tables) == 3, "an epoch, a query or the status is not shown as a table"
    assert [name for name in ("hall", "roof") if name in tables[1]] == ["hall", "roof"]
    assert "21.5" in tables[1]
    assert any("TG-401" in out.get("text", "") for out in shown)
    assert (tmp_path / "notebook_data" / "_pipelines").is_dir(), (
        "the notebook did not run in its own folder"
    )


def _html(output: Any) -> str:
    return str(output.get("data", {}).get("text/html", ""))
