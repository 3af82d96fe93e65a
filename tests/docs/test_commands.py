"""The comparison of a page's output: differences that fail its test, and others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.commands import blocks, follow, masked

PAGE = """\
# One
```python title="sub/one.txt"
1
```
```bash
cat sub/one.txt
echo "took 12.3 s in file:///elsewhere"
```
```text
{shown}
```
```sh
exit 1
```
"""


def a_page(folder: Path, shown: str, **changes: str) -> Path:
    page = folder / "page.md"
    text = PAGE.format(shown=shown)
    for old, new in changes.items():
        text = text.replace(old, new)
    page.write_text(text)
    return page


def test_files_are_written_commands_run_and_what_they_print_is_compared(tmp_path: Path) -> None:
    follow(blocks(a_page(tmp_path, "1\ntook 4 ms in file:///home/you")), tmp_path)

    assert (tmp_path / "sub/one.txt").read_text() == "1\n"


@pytest.mark.parametrize("shown", ["2\ntook 4 ms in file:///x", "1", "1\ntook 4 ms in https://x"])
def test_another_output_is_noticed(tmp_path: Path, shown: str) -> None:
    with pytest.raises(AssertionError, match="One, printed"):
        follow(blocks(a_page(tmp_path, shown)), tmp_path)


def test_a_command_that_fails_is_noticed_wherever_it_stands(tmp_path: Path) -> None:
    page = a_page(tmp_path, "1", cat="false; cat")

    with pytest.raises(AssertionError, match="false; cat"):
        follow(blocks(page), tmp_path)


def test_times_sizes_and_places_differ_from_run_to_run_and_nothing_else_does() -> None:
    before = masked(" 7  FAILED  75.9 s  1.4 kB  file:///a/b  11-22 19:29:50.193")
    after = masked("7 FAILED 2 min 20 B file:///c 01-01 00:00:00.000")

    assert before == after
    assert masked("12 rows") != masked("13 rows")
