"""The dark and the light colour theme. The colours ``band0`` (largest error share) to ``band4`` (none) have one hue.

On a terminal of 16 colours, the nearest colours of the bands are yellow and grey, never red. Red is reserved for NaN,
Inf and a missed target. The tints ``chip32`` to ``chip4`` behind precisions are not visible there; the word remains.
"""

from textual.theme import Theme

DARK = Theme(
    name="trt-dark", dark=True,
    primary="#6f9bc4", secondary="#6f9bc4", accent="#8ab4dc", warning="#d7c27a", error="#ff6b6b", success="#93b893",
    foreground="#c9ced6", background="#15171b", surface="#1b1e23", panel="#23272e", boost="#23272e",
    variables={
        "band0": "#ffc24a", "band1": "#e0ac3f", "band2": "#b8963a", "band3": "#8e7d4e", "band4": "#6f737a",
        "quiet": "#80868f", "rule": "#3d434c", "plot": "#7795b3", "raised": "#5fc4c4", "row": "#2a3038",
        "chip32": "#0f3032", "chip16": "#15243a", "chip8": "#24232b", "chip4": "#301e36", "chip-text": "#aab0ba",
        "block-cursor-foreground": "#e8ecf2", "block-cursor-background": "#2f3a47",
        "block-cursor-blurred-foreground": "#c9ced6", "block-cursor-blurred-background": "#15171b",
        "block-cursor-text-style": "none", "block-cursor-blurred-text-style": "none",
        "scrollbar": "#343a43", "scrollbar-hover": "#4a525d", "scrollbar-active": "#5a6472",
        "scrollbar-background": "#15171b", "scrollbar-background-hover": "#15171b",
        "scrollbar-background-active": "#15171b", "scrollbar-corner-color": "#15171b",
    },
)

LIGHT = Theme(
    name="trt-light", dark=False,
    primary="#2f6697", secondary="#2f6697", accent="#1f5c91", warning="#7a5d00", error="#c4181f", success="#2f6b3a",
    foreground="#2a2d33", background="#fbfaf7", surface="#f3f1ec", panel="#e9e6df", boost="#e9e6df",
    variables={
        "band0": "#9a5b00", "band1": "#a86f00", "band2": "#ab7d1a", "band3": "#8e8258", "band4": "#8b8e94",
        "quiet": "#6c7078", "rule": "#c9c6bf", "plot": "#4f7ba6", "raised": "#00707a", "row": "#e6e9ee",
        "chip32": "#d3ecec", "chip16": "#d9e6f7", "chip8": "#eae7ee", "chip4": "#f3def1", "chip-text": "#4a4e57",
        "block-cursor-foreground": "#15171b", "block-cursor-background": "#d9e2ec",
        "block-cursor-blurred-foreground": "#2a2d33", "block-cursor-blurred-background": "#fbfaf7",
        "block-cursor-text-style": "none", "block-cursor-blurred-text-style": "none",
        "scrollbar": "#cfccc4", "scrollbar-hover": "#b5b2aa", "scrollbar-active": "#9d9a93",
        "scrollbar-background": "#fbfaf7", "scrollbar-background-hover": "#fbfaf7",
        "scrollbar-background-active": "#fbfaf7", "scrollbar-corner-color": "#fbfaf7",
    },
)
