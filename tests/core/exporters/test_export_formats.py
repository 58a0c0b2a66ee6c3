"""A new export format is a function that writes it and one entry in the table: the command and the app then have it."""

import time
from pathlib import Path

import pytest

from tests.driven import LocalClient
from tests.screen import answered, opened, press, status
from trt_tui.cli.export import export
from trt_tui.core.exporters.formats import ExportContext, WrittenExport
from trt_tui.core.exporters.registry import EXPORT_FORMATS, ExportFormat
from trt_tui.session import session


def write_csv_export(context: ExportContext) -> WrittenExport:
    """Writes the precision of each row, and the precisions that occur beside it."""
    precisions = context.config.precision_by_group(context.network)
    context.path.write_text("".join(f"{name},{precision.value}\n" for name, precision in precisions.items()))
    context.companion_paths["types"].write_text("\n".join(sorted({item.value for item in precisions.values()})))
    return WrittenExport([context.path, context.companion_paths["types"]], (f"{len(precisions)} rows",))


@pytest.fixture
def csv_format(monkeypatch):
    monkeypatch.setitem(
        EXPORT_FORMATS,
        "csv",
        ExportFormat(
            "CSV",
            "precisions by row",
            ".precisions.csv",
            f"{__name__}:{write_csv_export.__name__}",
            {"types": ".types"},
        ),
    )
    format_type = next(parameter.type for parameter in export.params if parameter.name == "kind")
    monkeypatch.setattr(format_type, "choices", [*format_type.choices, "csv"])


class ImmediateClient(LocalClient):
    """Answers a request in this process, where the format is registered, before it returns."""

    def __init__(self, on_event, list_reopen_requests):
        super().__init__(on_event)

    def send_request(self, request):
        job = super().send_request(request)
        while self.scheduler.inbox or self.scheduler.scheduled_jobs:
            if not self.scheduler.run_next_step():
                time.sleep(0.001)
        return job


def test_the_command_writes_it(run, mlp, tmp_path, monkeypatch, csv_format):
    monkeypatch.setattr(session, "JobClient", ImmediateClient)
    arguments = ("export", mlp.model, "--precision", "fp16", "--format", "csv")
    code, out, err = run(*arguments, "-o", tmp_path / "out.csv")
    assert code == 0 and "3 rows" in err, err
    assert out.split() == [str(tmp_path / "out.csv"), str(tmp_path / "out.csv.types")]
    assert (tmp_path / "out.csv").read_text().count(",fp16\n") == 3
    (tmp_path / "out.csv.types").unlink()
    (tmp_path / "out.csv.types").mkdir()
    code, _, err = run(*arguments, "-o", tmp_path / "out.csv")
    assert code == 2 and "out.csv.types" in err, "files beside it are checked first"
    code, _, err = run(*arguments, "-o", tmp_path / "new.csv", "--trtexec=--builderOptimizationLevel=5")
    assert code == 2 and "this format has no builder settings" in err


@pytest.mark.usefixtures("quick")
async def test_the_app_offers_and_writes_it(tmp_path, monkeypatch, csv_format):
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "e")
        choices = app.screen.query_one("KeyedOptionList")
        await answered(pilot, *["down"] * (len(choices.options) - 1))  # the last entry opens the other formats
        options = [str(option.prompt) for option in choices.options]
        assert options[-1].split() == ["CSV", "precisions", "by", "row"]
        await answered(pilot, *["down"] * (len(options) - 1 - choices.highlighted), "enter", "enter")
        assert Path(app.session.child.sent[-1].path) == tmp_path / "vit.precisions.csv"
        assert (tmp_path / "vit.precisions.csv").stat().st_size and "Wrote" in status(main)
