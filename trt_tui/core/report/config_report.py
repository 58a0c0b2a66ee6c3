"""The report of a config that is not measured."""

from trt_tui.core.moves.config import PrecisionConfig, move_tables
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.report.document import Section, Table, report_markdown


def config_section(config: PrecisionConfig, network: NetworkOutline) -> Section:
    """Returns the default precisions of a config, and a table for each kind of move."""
    return Section(
        "Config",
        [
            [f"{config.defaults_text}; TF32 is {'on' if config.tf32 else 'off'}."],
            *(Table([header, *rows], len(header)) for header, rows in move_tables(config, network)),
        ],
    )


def config_markdown(network: NetworkOutline, config: PrecisionConfig, name: str, setup_text: str) -> str:
    """Returns the report of a config in Markdown; ``setup_text`` is that of `SessionState.setup_text`."""
    origin = f"For {network.name} ({len(network.layers)} nodes, structure {network.structure_sha256[:12]})."
    return report_markdown(
        f"Precision config {name}".rstrip(), [Section("", [[origin, setup_text]]), config_section(config, network)]
    )
