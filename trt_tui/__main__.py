"""``python -m trt_tui``."""

from trt_tui.module_path import leave_folder_of_start

if __name__ == "__main__":
    leave_folder_of_start()
    from trt_tui.cli.main import main

    main()
