# SPDX-License-Identifier: Apache-2.0
"""The glibc version that programs and libraries need: python3 glibc.py FILE... prints it."""
import platform
import re
import subprocess
import sys

FLOOR = (2, 17)  # manylinux2014, the oldest that package indexes take


def needed(paths):
    """Newest glibc version that the files name, as (major, minor)."""
    newest = FLOOR
    for path in paths:
        text = subprocess.run(["objdump", "-T", path], check=True, capture_output=True,
                              text=True).stdout
        for major, minor in re.findall(r"\(?GLIBC_(\d+)\.(\d+)", text):
            newest = max(newest, (int(major), int(minor)))
    return newest


def tag(paths):
    """The wheel's platform."""
    major, minor = needed(paths)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


if __name__ == "__main__":
    print(tag(sys.argv[1:]))
