"""``python -m trt_tui``."""

from trt_tui.cli.main import main

if __name__ == "__main__":
    main()
