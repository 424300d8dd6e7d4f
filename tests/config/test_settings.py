import pytest

from kakeya.cli.flags import NodeFlags, load_settings
from kakeya.config.settings import BOUNDS, ConfigError, env_name, keys, load
from tests.spec_tables import table


def merged(flags=None, env=None, toml=""):
    return load(flags=flags or {}, env=env or {}, toml_text=toml)


def shown(value):
    return ",".join(value) if isinstance(value, tuple) else str(value)


@pytest.mark.spec("N-03")
def test_flag_beats_environment_beats_file_beats_default():
    toml = "sink = 1\nwindow = 100\nport = 1001"
    loaded = merged({"port": 1003}, {"KAKEYA_PORT": "1002", "KAKEYA_WINDOW": "200"}, toml)
    assert (loaded.settings.port, loaded.origins["port"]) == (1003, "flag")
    assert (loaded.settings.window, loaded.origins["window"]) == (200, "environment")
    assert (loaded.settings.sink, loaded.origins["sink"]) == (1, "file")
    assert (loaded.settings.kv, loaded.origins["kv"]) == ("full", "default")


@pytest.mark.spec("N-03")
@pytest.mark.parametrize(
    ("kind", "key", "near"),
    [("toml", "prot", "port"), ("env", "KAKEYA_POTR", "KAKEYA_PORT"), ("flag", "rpc.max", "rpc.")],
)
def test_an_unknown_key_names_the_nearest(kind, key, near):
    given = {"toml": f"{key} = 1"} if kind == "toml" else {kind.replace("flag", "flags"): {key: 1}}
    with pytest.raises(ConfigError, match=f"unknown key '{key}'.*did you mean {near}"):
        merged(**given)


@pytest.mark.spec("N-03")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", 70000),
        ("port", -1),
        ("port", "x"),
        ("window", 3),
        ("num_drafts", 65),
        ("num_drafts", "many"),
        ("kv", "half"),
        ("rpc.max_message_bytes", 0),
        ("fleet.interval_s", float("nan")),
        ("fleet.interval_s", float("inf")),
        ("node.drain_s", -1),
        ("insecure", "perhaps"),
    ],
)
def test_a_bad_value_is_an_error_that_names_it(key, value):
    with pytest.raises(ConfigError) as error:
        merged({key: value})
    assert key in str(error.value)
    assert repr(value) in str(error.value) or str(value) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", list(keys()))
def test_every_key_can_be_set_by_its_variable(key):
    _, default = keys()[key]
    text = shown(default)
    loaded = merged(env={env_name(key): text})
    assert loaded.origins[key] == "environment"


def test_a_file_that_is_no_toml_or_missing_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match="is not TOML"):
        merged(toml="port = ")
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere"):
        load_settings(NodeFlags(config=str(tmp_path / "nowhere")), {})


def test_the_file_is_found_under_xdg_config_home(tmp_path):
    (tmp_path / "kakeya").mkdir()
    (tmp_path / "kakeya" / "config.toml").write_text('fleet_name = "attic"')
    assert load_settings(None, {"XDG_CONFIG_HOME": str(tmp_path)}).settings.fleet_name == "attic"


def test_lists_come_from_repeated_flags_or_commas():
    assert merged(env={"KAKEYA_PEER": "a:1,b:2"}).settings.peer == ("a:1", "b:2")
    assert merged({"peer": ("a:1", "b:2")}).settings.peer == ("a:1", "b:2")


def test_set_reaches_every_limit():
    loaded = load_settings(NodeFlags(set_=("rpc.max_message_bytes=1000",)), {})
    assert loaded.settings.rpc.max_message_bytes == 1000
    with pytest.raises(ConfigError, match=r"is not SECTION\.KEY=VALUE"):
        load_settings(NodeFlags(set_=("nonsense",)), {})


@pytest.mark.spec("N-03")
def test_the_settings_table_is_the_one_in_the_spec():
    rows = table("node.md", "key", "default", "bounds")
    plain = {k: default for k, (_, default) in keys().items() if "." not in k}
    assert {key: default for key, default, _ in rows} == {k: shown(v) for k, v in plain.items()}
    bounds = {key: bound for key, _, bound in rows if bound}
    assert bounds == {k: f"{low:.0f} … {high:.0f}" for k, (low, high) in BOUNDS.items()}


def test_the_node_limits_are_those_in_the_spec():
    rows = dict(table("node.md", "key", "default"))
    coded = {k: str(v) for k, (_, v) in keys().items() if k.startswith("node.")}
    assert rows == coded
