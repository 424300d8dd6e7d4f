from __future__ import annotations

import pytest

from kakeya.config.settings import ConfigError, load
from kakeya.config.sizes import parse_size, shown_size


@pytest.mark.spec("N-22")
@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("123", 123),
        ("12b", 12),
        ("500MB", 500_000_000),
        ("500 mb", 500_000_000),
        ("3GiB", 3 << 30),
        (" 1.5GB ", 1_500_000_000),
        ("1KiB", 1024),
        ("2TiB", 2 << 40),
        ("0.5kB", 500),
    ],
)
def test_a_size_is_read_with_its_unit(text, num_bytes):
    assert parse_size(text) == num_bytes


@pytest.mark.spec("N-22")
@pytest.mark.parametrize("text", ["", "GB", "3 G", "3GiBs", "-1", "1e9", "3,5GB", "1" * 19, "٣GB"])
def test_what_is_no_size_is_refused_with_how_one_is_written(text):
    with pytest.raises(ValueError, match="GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(999, "999 B"), (1000, "1.0 kB"), (540_100_000, "540.1 MB"), (3 << 30, "3.2 GB")],
)
def test_a_size_is_shown_in_the_unit_that_suits_it(num_bytes, text):
    assert shown_size(num_bytes) == text


@pytest.mark.spec("N-22")
def test_sizes_come_from_flag_environment_and_file():
    by_flag = load(flags={"memory_limit": "8GiB"}, env={}, toml_text="")
    assert by_flag.settings.memory_limit == 8 << 30
    by_env = load(flags={}, env={"KAKEYA_MAX_MESSAGE_BYTES": "64MiB"}, toml_text="")
    assert by_env.settings.rpc.max_message_bytes == 64 << 20
    by_file = load(flags={}, env={}, toml_text='memory_limit = "1.5GB"')
    assert by_file.settings.memory_limit == 1_500_000_000
    with pytest.raises(ConfigError, match="memory_limit is '3 gallons'.*GiB"):
        load(flags={"memory_limit": "3 gallons"}, env={}, toml_text="")
    with pytest.raises(ConfigError, match="port is '1GB'"):
        load(flags={"port": "1GB"}, env={}, toml_text="")
