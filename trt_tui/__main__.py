"""The entry point of ``python -m trt_tui``."""

from trt_tui.module_path import remove_start_folder_from_path

if __name__ == "__main__":
    remove_start_folder_from_path()
    from trt_tui.cli.main import main

    main()
