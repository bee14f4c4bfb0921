"""How a config is found, merged and overridden, and what a mistake in it is told."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sparkring.conf.loading import load_config, parse_config
from sparkring.conf.schema import HashSplit, TimeSplit
from sparkring.errors import ConfigError
from tests.support.configs import MINIMAL, write


@pytest.fixture
def minimal(tmp_path: Path) -> str:
    return write(tmp_path, "tiny.yaml", MINIMAL)


def test_a_file_is_read_and_the_rest_has_defaults(minimal: str) -> None:
    config = load_config(minimal)
    assert (config.name, config.train.num_ranks, config.dataset) == ("tiny", 2, str(Path(minimal).parent / "runs/tiny/dataset"))


@pytest.mark.parametrize(("override", "path", "expected"), [
    pytest.param("train.epochs=7", "train.epochs", 7, id="a whole number"),
    pytest.param("train.optimizer.lr=1e-4", "train.optimizer.lr", 1e-4, id="a float without a point, which YAML alone reads as text"),
    pytest.param("train.ring.shared_memory=false", "train.ring.shared_memory", False, id="a truth value"),
    pytest.param("model.hidden=[8, 4]", "model.hidden", (8, 4), id="a list"),
    pytest.param("train.lanes=null", "train.lanes", None, id="nothing"),
    pytest.param("prepare.query=SELECT a=1 AS b", "prepare.query", "SELECT a=1 AS b", id="a text with an equals sign"),
    pytest.param(" name = later ", "name", "later", id="spaces around"),
])
def test_a_set_option_changes_one_value(minimal: str, override: str, path: str, expected: object) -> None:
    found: Any = load_config(minimal, [override])
    for part in path.split("."):
        found = getattr(found, part)
    assert found == expected


def test_a_set_option_leaves_its_neighbours_alone(minimal: str) -> None:
    before = load_config(minimal)
    after = load_config(minimal, ["train.ring.deadline_s=9"])
    assert after.train.ring.deadline_s == 9
    assert after.model_dump(exclude={"train": {"ring": {"deadline_s"}}}) == before.model_dump(exclude={"train": {"ring": {"deadline_s"}}})


@pytest.mark.parametrize(("given", "taken"), [
    ("s3://bucket/prefix/", "s3://bucket/prefix"), ("runs/tiny//", "runs/tiny"), ("s3://bucket/", "s3://bucket"), ("hdfs:///", "hdfs:///"),
    ("/", "/")])
def test_a_slash_at_a_folder_s_end_makes_no_other_folder(minimal: str, given: str, taken: str) -> None:
    config = load_config(minimal, [f"workspace={given}", f"dataset_url={given}"])
    assert (config.workspace, config.dataset) == (taken, taken)


def test_of_two_set_options_for_one_key_the_later_wins(minimal: str) -> None:
    assert load_config(minimal, ["train.epochs=3", "train.epochs=4"]).train.epochs == 4


def test_another_kind_of_split_leaves_nothing_of_the_old_one(minimal: str) -> None:
    config = load_config(minimal, ["prepare.split.by=hash", "prepare.split.column=id", "prepare.split.seed=5"])
    assert config.prepare.split == HashSplit(by="hash", column="id", seed=5)
    same = load_config(minimal, ["prepare.split.by=time", "prepare.split.column=moment"]).prepare.split
    assert isinstance(same, TimeSplit)
    assert (same.column, same.borders[1].month) == ("moment", 11)


def test_ages_of_a_split_take_the_place_of_moments_and_the_other_way_round(minimal: str) -> None:
    aged = load_config(minimal, ["prepare.split.validation=7d", "prepare.split.test=30d"]).prepare.split
    assert isinstance(aged, TimeSplit)
    assert (aged.rolls, aged.test, aged.test_from) == (True, "30d", None)
    again = load_config(minimal, ["prepare.split.validation=7d", "prepare.split.test=30d",
                                  "prepare.split.validation_from=2020-01-01", "prepare.split.test_from=2020-02-01"]).prepare.split
    assert isinstance(again, TimeSplit)
    assert not again.rolls
    with pytest.raises(ConfigError, match="found test_from, validation"):
        load_config(minimal, ["prepare.split.validation=7d"])


def test_the_rest_of_a_path_below_spark_conf_is_one_spark_property(minimal: str) -> None:
    config = load_config(minimal, ["spark.conf.spark.executor.memory=4g", "spark.conf.spark.ui.enabled=false"])
    assert config.spark.conf == {"spark.executor.memory": "4g", "spark.ui.enabled": "false"}


def test_the_rest_of_a_path_below_search_space_is_one_key(minimal: str) -> None:
    space = load_config(minimal, ["search.space.train.optimizer.lr={low: 1e-4, high: 0.1, log: true}"]).search.space
    assert {key: values.low for key, values in space.items()} == {"train.optimizer.lr": 1e-4}


def test_what_a_file_does_not_say_comes_from_the_one_it_extends(tmp_path: Path) -> None:
    write(tmp_path, "shared/tiny.yaml", MINIMAL | {"train": {"epochs": 9, "batch_rows": 64}})
    child = write(tmp_path, "mine.yaml", {"extends": "shared/tiny.yaml", "name": "mine", "train": {"epochs": 2}})
    config = load_config(child)
    assert (config.name, config.train.epochs, config.train.batch_rows) == ("mine", 2, 64)


def test_extends_is_seen_from_the_file_that_says_it_not_from_the_current_folder(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "conf/parent.yaml", MINIMAL)
    write(tmp_path, "conf/child.yaml", {"extends": "parent.yaml", "name": "child"})
    monkeypatch.chdir(tmp_path)
    assert load_config("conf/child.yaml").name == "child"


@pytest.mark.parametrize(("overrides", "message"), [
    pytest.param(["train.epoch=2"], "unknown key train.epoch; did you mean 'epochs'?", id="the nearest key of the section"),
    pytest.param(["epochs=2"], "unknown key epochs; did you mean 'train.epochs'?", id="the same key in another section"),
    pytest.param(["prepare.sources.trips.colums={}"], "unknown key prepare.sources.trips.colums; did you mean 'columns'?",
                 id="a key below a name of the user's"),
    pytest.param(["train.ring.zzz=1"], "unknown key train.ring.zzz (known here: launcher, ", id="nothing near: the keys there are"),
    pytest.param(["train.epochs=none"], "train.epochs: Input should be a valid integer", id="a text for a number"),
    pytest.param(["train.epochs=0"], "train.epochs: Input should be greater than 0 (found 0)", id="a number out of range"),
    pytest.param(["train.optimizer.name=adm"], "'adam', 'adamw' or 'lars' (found 'adm')", id="a word that is not offered"),
    pytest.param(["train.num_ranks=4", "train.parallel.replicas=[1, 2]"], "config {}: train.parallel.replicas=[1, 2] of 1 shards are 3 "
                 "ranks, train.num_ranks=4; make them equal", id="keys of two sections, each with its path"),
    pytest.param(["train.parallel.chunks_per_stage=2", "train.parallel.replicas=[1, 1]"], "config {}: train.parallel.chunks_per_stage=2 "
                 "needs the schedule interleaved, found 1f1b; set train.parallel.schedule=interleaved", id="keys of an inner section"),
    pytest.param(["train.lanes=1"], "config {}: train.lanes=1 is less than train.num_ranks=2, so some ranks "
                 "would never get a row; set train.lanes to at least 2", id="values that contradict each other"),
    pytest.param(["train.ring.launcher=horovod.spark", "train.ring.heartbeat_s=2", "train.ring.fork_ranks=false"],
                 "config {}: train.ring.heartbeat_s=2.0, train.ring.fork_ranks=False has no effect with launcher horovod.spark; leave it "
                 "out, or use launcher: barrier", id="keys that the launcher does not read"),
    pytest.param(["prepare.features.numeric=[]"], "there are no features; name at least one column", id="no features"),
    pytest.param(["prepare.features.moments=[{column: day}]"], "prepare.features.moments.0: nothing is made of day; name parts of it",
                 id="a moment of which nothing is made"),
    pytest.param(["prepare.features.moments=[{column: day, waves: [year]}]"],
                 "prepare.features.moments.0.waves.0: Input should be 'quarter',", id="a part that does not come again"),
    pytest.param(["prepare.features.moments=[{column: day, waves: [hour], time_zone: Mars/Base}]"],
                 "unknown time zone; give an IANA name such as UTC or Europe/Zurich (found 'Mars/Base')",
                 id="no such time zone"),
    pytest.param(["prepare.features.moments=[{column: day, numbers: [hour], categories: [hour]}]"], "features named twice: day_hour",
                 id="one name for two features"),
    pytest.param(["prepare.features.buckets=[{column: km}]"], "km needs either quantiles (fitted on train rows) or edges (given), found "
                 "neither", id="buckets without borders"),
    pytest.param(["prepare.features.buckets=[{column: km, edges: [3, 1]}]"], "edges of km do not ascend: 1 follows 3",
                 id="edges in disorder"),
    pytest.param(["prepare.features.hashed=[{column: km, ids: 1}]"], "greater than or equal to 2 (found 1)", id="a hash to nothing"),
    pytest.param(["prepare.label=''"], "prepare: task binary needs a label", id="nothing for something"),
    pytest.param(["model.kind=image", "model.widhts=[8]"],
                 "unknown key model.widhts; did you mean 'widths'? (known here: network, options, dropout, weights, "
                 "weights_sha256, weights_partial, kind, widths, norm)",
                 id="a key of the chosen network"),
    pytest.param(["model.hiden=[8]"], "unknown key model.hiden; did you mean 'hidden'?", id="a key of the network that is not named"),
    pytest.param(["model.kind=imge"], "model: unknown kind; give tabular, image or text", id="no such network"),
    pytest.param(["model.kind=text", "model.width=130"], "config {}: model.width=130 is not a multiple of model.heads=4; set model.width "
                 "to 132", id="heads that do not fit"),
    pytest.param(["prepare.features.tokens={column: a, document: b}"], "tokens stand alone, found km beside them", id="text and numbers"),
    pytest.param(["prepare.task=next_token"], "task next_token and features.tokens go together", id="a task without its text"),
    pytest.param(["prepare.task=masked_tokens"], "task masked_tokens and features.tokens go together", id="the same of masked tokens"),
    pytest.param(["prepare.sources.more={path: more.csv}"], "prepare.sources.more: format csv needs columns", id="a table without columns"),
    pytest.param(["prepare.sources.more={path: more, format: json}"], "prepare.sources.more: format json needs columns", id="json"),
    pytest.param(["prepare.sources.more={path: more.csv, columns: {id: int}, separator: ';;'}"],
                 "prepare.sources.more.separator: String should have at most 1 character", id="a long separator"),
    pytest.param(["prepare.sources.Trips={path: more.csv, columns: {id: int}}"],
                 "sources trips and Trips have the same name in SQL", id="tables that differ in capitals alone"),
    pytest.param(["workspace=~/runs"], "workspace: ~ means a home folder only in a shell; give "
                 "the whole path (found '~/runs')", id="a home folder that no shell has looked at"),
    pytest.param(["dataset_url=~/runs"], "dataset_url: ~ means a home folder only", id="the same of a dataset"),
    pytest.param(["prepare.sources.trips.format=idx"], "format idx has fixed columns; name none", id="columns for images"),
    pytest.param(["prepare.sources.table={format: delta, path: x, versoin: 1, columns: {id: int}}"],
                 "unknown key prepare.sources.table.versoin; did you mean 'version'?", id="a key of a kind of source"),
    pytest.param(["prepare.sources.trips={format: jdbc, url: 'jdbc:x://h/d', columns: {id: int}}"],
                 "prepare.sources.trips.query is required and has no value", id="a missing key of a kind of source"),
    pytest.param(["prepare.split.test_form=2014-01-01"], "unknown key prepare.split.test_form; did you mean 'test_from'?",
                 id="a key of a section that has kinds"),
    pytest.param(["prepare.split={by: hash, column: id, seeds: 2}"], "unknown key prepare.split.seeds; did you mean 'seed'?",
                 id="a key of another kind of section"),
    pytest.param(["prepare.split={by: hash}"], "prepare.split.column is required and has no value; add it to the file or give --set "
                 "prepare.split.column=...", id="a missing key of a kind"),
    pytest.param(["prepare.split={by: luck}"], "prepare.split: by must be time, hash, random, fold or column", id="no such kind"),
    pytest.param(["prepare.split=5"], "prepare.split: by must be time", id="no section at all"),
    pytest.param(["prepare.split={by: random, test_share: 0.6, validation_share: 0.4}"],
                 "prepare.split: validation_share=0.4 and test_share=0.6 leave nothing to train on", id="shares that take all"),
    pytest.param(["prepare.split={by: fold, column: id, folds: 5, fold: 5}"], "prepare.split: fold=5 is not one of the 5 folds; give 0 to "
                 "4", id="a fold beyond the last"),
    pytest.param(["model.kind=image", "model.norm=batch"], "config {}: model.norm=batch normalises over the rows of a micro-batch; set "
                 "train.parallel.micro_batches", id="keys of two sections"),
])
def test_a_mistake_is_told_in_one_line_with_its_place_and_a_remedy(minimal: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(minimal, overrides)
    assert message.replace("config {}", f"config {minimal}") in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("url", ["jdbc:postgresql://etl:hunter2@host/shop", "jdbc:sqlserver://host;user=etl;password=hunter2",
                                 "jdbc:mysql://host/shop?user=etl&PASSWORD=hunter2", "jdbc:oracle:thin:etl/hunter2@host:1521/shop",
                                 "jdbc:mysql://host/shop?passwd=hunter2", "jdbc:db2://host/shop:apiKey=hunter2;",
                                 "jdbc:snowflake://host/?privateKeyPwd=hunter2", "jdbc:redshift:iam://host/shop?SecretAccessKey=hunter2",
                                 "jdbc:x://host;AuthToken.v2 = hunter2", "jdbc:x://host/shop?Credentials=hunter2",
                                 "jdbc:mysql://host/shop?pass%77ord=hunter2", "jdbc:mysql://host/shop?pass%2577ord%253Dhunter2",
                                 "jdbc:postgresql://etl%3Ahunter2%40host/shop"])
def test_a_password_in_an_address_is_refused_and_not_repeated(minimal: str, url: str) -> None:
    with pytest.raises(ConfigError, match=r"prepare\.sources\.trips\.url: a config holds no password; .* set user_env") as raised:
        load_config(minimal, [f"prepare.sources.trips={{format: jdbc, url: '{url}', query: SELECT 1, columns: {{id: int}}}}"])
    assert "hunter2" not in str(raised.value)


def test_an_address_without_a_password_is_taken(minimal: str) -> None:
    for url in ("jdbc:postgresql://host:5432/shop", "jdbc:h2:mem:shop;DB_CLOSE_DELAY=-1", "jdbc:oracle:thin:@host:1521/shop",
                "jdbc:postgresql://host/monkeys?ApplicationName=tokens%20of%20keys&sslmode=require"):
        config = load_config(minimal, [f"prepare.sources.trips={{format: jdbc, url: '{url}', query: SELECT 1, columns: {{id: int}}}}"])
        assert config.prepare.sources["trips"].model_dump()["url"] == url


@pytest.mark.parametrize(("key", "value"), [
    ("spark.driver.extraJavaOptions", "-Xmx1g -Djavax.net.ssl.trustStorePassword=hunter2"),
    ("spark.hadoop.javax.jdo.option.ConnectionURL", "jdbc:mysql://host/hive?user=hive&password=hunter2"),
    ("spark.hadoop.fs.x.address", "https://me:hunter2@host/x"), ("spark.executorEnv.PGPASS", "hunter2"),
    ("spark.executorEnv.DB_PWD", "hunter2"), ("spark.driver.extraJavaOptions", "-Dkeystore.pass=hunter2"),
    ("spark.driver.extraJavaOptions", "-Dapi_key=hunter2"), ("spark.hadoop.my.url", "jdbc:oracle:thin:me/hunter2@//host/db")])
def test_a_secret_in_a_property_of_spark_is_refused_and_not_repeated(minimal: str, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"a config holds no secret, and {key} would stand in the process list") as raised:
        load_config(minimal, [f"spark.conf.{key}={json.dumps(value)}"])
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigError, match=rf"and {key}, spark\.my\.token would stand"):
        load_config(minimal, [f"spark.conf.{key}={json.dumps(value)}", "spark.conf.spark.my.token=hunter2"])


@pytest.mark.parametrize("key", ["workspace", "dataset_url"])
def test_a_secret_in_the_address_of_a_store_is_refused_and_not_repeated(minimal: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: a config holds no password and no key") as raised:
        load_config(minimal, [f"{key}=s3://AKIA:hunter2@bucket/x"])
    assert "hunter2" not in str(raised.value)
    assert load_config(minimal, [f"{key}=hdfs://me@host:8020/x"]).model_dump()[key] == "hdfs://me@host:8020/x"  # the control


@pytest.mark.parametrize("key", ["prepare.sources.trips.path", "prepare.sources.lake.path", "train.cache_folder", "workspace"])
@pytest.mark.parametrize("address", ["ftp://bob:hunter2@host/x.csv", "s3a://AKIA:hunter2@bucket/x", "s3a://AKIA:hun/ter2+@bucket/x",
                                     "s3a://AKIA:/hunter2@bucket/x", "https://bob:12345@[::1]:8020/x", "ftp://bob:hun@ter2@host/x"])
def test_a_login_in_a_path_is_refused_and_not_repeated(minimal: str, key: str, address: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: a config holds no password and no key; leave them out of the address") as raised:
        load_config(minimal, ["prepare.sources.lake={format: delta, path: lake}", f"{key}={address}"])
    assert address not in str(raised.value)


@pytest.mark.parametrize("path", ["abfs://container@account.dfs.core.windows.net/a:b@c", "s3://bucket/a:b@c", "s3://bucket//a:b@c",
                                  "hdfs://host:8020/x@y", "hdfs://me@host:8020/x@y", "hdfs://[::1]:8020/x@y", "file:///data/a:b@c.csv",
                                  "/data//a:b@c.csv", "package:data/a@b.csv"])
def test_a_path_that_holds_colons_and_ats_but_no_login_is_taken(minimal: str, path: str) -> None:
    assert load_config(minimal, [f"prepare.sources.trips.path={path}"]).prepare.sources["trips"].model_dump()["path"] == path


def test_properties_that_only_say_where_a_secret_is_are_taken(minimal: str) -> None:
    taken = {"spark.hadoop.hadoop.security.credential.provider.path": "jceks://hdfs/me/keys.jceks", "spark.kerberos.keytab": "/k.keytab",
             "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStore=/etc/trust.jks -Dtoken.file=/x -Dtokenizer.dir=/m -XX:+UseG1GC",
             "spark.executorEnv.TOKENIZERS_PARALLELISM": "false",
             "spark.executor.memory": "4g", "spark.hadoop.fs.s3a.aws.credentials.provider": "com.amazonaws.auth.Provider"}
    loaded = load_config(minimal, [f"spark.conf.{key}={json.dumps(value)}" for key, value in taken.items()])
    assert taken.items() <= loaded.spark.conf.items()


@pytest.mark.parametrize("key", ["spark.hadoop.fs.s3a.secret.key", "spark.executor.memory"])
def test_a_property_of_spark_that_is_no_text_is_refused_and_not_repeated(minimal: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"spark.conf.{key}: Input should be a valid string") as raised:
        load_config(minimal, [f"spark.conf.{key}=[hunter2]"])
    assert "hunter2" not in str(raised.value)
    assert load_config(minimal, ["spark.conf.spark.sql.x=2024-01-01"]).spark.conf["spark.sql.x"] == "2024-01-01"  # the control


@pytest.mark.parametrize(("override", "where"), [
    ("prepare.sources.trips.columns={id: bigint, yes: int}", "prepare.sources.trips.columns: a key is yes, on or true"),
    ("prepare.label=off", "prepare.label: the text is no, off or false")])
def test_a_word_that_yaml_makes_a_truth_value_is_to_be_quoted(minimal: str, override: str, where: str) -> None:
    with pytest.raises(ConfigError, match=rf"{where}, which YAML reads as a truth value; quote it, e\.g\. '"):
        load_config(minimal, [override])
    quoted = override.replace("yes", "'yes'").replace("off", "'off'")
    assert load_config(minimal, [quoted]).prepare.label in ("late", "off")  # the control


def test_a_config_of_aliases_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    levels = "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9))
    bomb = tmp_path / "bomb.yaml"
    bomb.write_text(f"a0: &a0 [x]\n{levels}name: *a8\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"aliases such as \*a0 are not allowed; write the value out, or use extends") as raised:
        load_config(str(bomb))
    assert len(str(raised.value)) < 1000


def test_of_a_long_value_that_does_not_fit_the_beginning_is_shown(minimal: str) -> None:
    with pytest.raises(ConfigError, match=r"train.epochs: .* \.\.\.\)") as raised:
        load_config(minimal, [f"train.epochs={'x' * 100_000}"])
    assert len(str(raised.value)) < 1000


def test_a_missing_key_says_how_to_give_it(tmp_path: Path) -> None:
    path = write(tmp_path, "tiny.yaml", {key: value for key, value in MINIMAL.items() if key != "workspace"})
    with pytest.raises(ConfigError, match=r"workspace is required and has no value; add it to the file or give --set workspace="):
        load_config(path)


def test_of_a_misspelt_key_and_the_missing_one_that_it_causes_the_first_is_told(tmp_path: Path) -> None:
    values = {("worksapce" if key == "workspace" else key): value for key, value in MINIMAL.items()}
    with pytest.raises(ConfigError, match=r"tiny.yaml: unknown key worksapce; did you mean 'workspace'\? .*tracking\)$"):
        load_config(write(tmp_path, "tiny.yaml", values))


def test_all_problems_are_told_at_once_a_line_each_and_unknown_keys_first(minimal: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(minimal, ["train.epochs=0", "train.lanes=1", "prepare.lable=x", "prepare.label=null", "model.kind=text",
                              "model.heads=3", "train.parallel.cut=[first, 1.5]"])
    head, *lines = str(raised.value).splitlines()
    assert head == f"config {minimal} has 6 problems; correct each of them:"
    assert [line.partition(":")[0].partition(";")[0] for line in lines] == [
        "  unknown key prepare.lable", "  prepare.label", "  model.width=128 is not a multiple of model.heads=3", "  train.epochs",
        "  train.parallel.cut.0", "  train.parallel.cut.1"]
    assert raised.value.found == f"config {minimal} has 6 problems"


@pytest.mark.parametrize("override", ["train.epochs", "=3", ""])
def test_a_set_option_without_key_or_value_shows_the_form(minimal: str, override: str) -> None:
    with pytest.raises(ConfigError, match=r"is not of the form key.path=value; give e.g. --set train.epochs=2"):
        load_config(minimal, [override])


@pytest.mark.parametrize(("text", "message"), [
    pytest.param("name: [unclosed", "is not valid YAML", id="broken YAML"),
    pytest.param("- a list", "holds a list, expected keys and values", id="a list"),
    pytest.param("", "holds a NoneType, expected keys and values", id="an empty file"),
    pytest.param("train:\n  epochs: 1\n  epochs: 2\n", "key 'epochs' is given twice; keep one", id="a key given twice"),
    pytest.param("name: !!python/object/apply:os.getcwd []", "is not valid YAML", id="a Python object"),
])
def test_a_file_that_is_not_a_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, "bad.yaml", text))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        load_config(str(path))


@pytest.mark.parametrize("test_from", ["2013-11-01T00:00:00Z", "2013-11-01"])
def test_moments_of_a_split_with_and_without_a_time_zone_are_compared_as_utc(minimal: str, test_from: str) -> None:
    split = load_config(minimal, [f"prepare.split={{column: day, validation_from: 2013-10-01, test_from: {test_from}}}"]).prepare.split
    assert isinstance(split, TimeSplit)
    assert split.borders == (datetime(2013, 10, 1, tzinfo=UTC), datetime(2013, 11, 1, tzinfo=UTC))
    with pytest.raises(ConfigError, match=r"is not before test_from=.*; swap them"):
        load_config(minimal, [f"prepare.split={{column: day, validation_from: 2013-11-01, test_from: {test_from}}}"])


def test_a_name_that_is_neither_file_nor_shipped_offers_the_nearest_shipped() -> None:
    with pytest.raises(ConfigError, match=r"no config named local/flight: .*did you mean 'local/flights'\?"):
        load_config("local/flight")


@pytest.mark.parametrize(("override", "why"), [
    pytest.param("model.hidden=[64, 32", "expected ',' or ']'", id="no end"),
    pytest.param("prepare.split={by: random", "expected ',' or '}'", id="no end of a section"),
    pytest.param("prepare.sources={a: x, a: y}", "key 'a' is given twice", id="a key that comes twice"),
])
def test_an_override_that_is_a_list_or_mapping_by_half_is_told_why_it_is_none(minimal: str, override: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"\(found '.*', which is not valid YAML: .*{re.escape(why)}"):
        load_config(minimal, [override])
    assert load_config(minimal, ["name=[x"]).name == "[x"  # a text may look so


@pytest.mark.parametrize("name", ["orders.yml", "order.yaml"])
def test_a_name_that_is_no_file_offers_the_nearest_file_beside_it(tmp_path: Path, name: str) -> None:
    write(tmp_path, "orders.yaml", MINIMAL)
    write(tmp_path, "flights.yaml", MINIMAL)
    with pytest.raises(ConfigError, match=rf"no config named {tmp_path}/{name}: .*; did you mean '{tmp_path}/orders\.yaml'\?$"):
        load_config(str(tmp_path / name))


def test_a_file_is_named_with_its_ending_and_only_shipped_configs_without(tmp_path: Path) -> None:
    write(tmp_path, "b.yaml", MINIMAL | {"workspace": "runs/with"})
    with pytest.raises(ConfigError, match=rf"no config named {tmp_path}/b: .*; give {tmp_path}/b\.yaml$"):
        load_config(str(tmp_path / "b"))
    write(tmp_path, "b", MINIMAL | {"workspace": "runs/without"})
    assert load_config(str(tmp_path / "b")).workspace == str(tmp_path / "runs/without")
    assert load_config(str(tmp_path / "b.yaml")).workspace == str(tmp_path / "runs/with")


@pytest.mark.parametrize("name", ["x" * 5_000, "x\0y", "../conf/base/flights"])
def test_a_name_that_no_file_can_have_is_no_config(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no config named .*: not a YAML file"):
        load_config(name)


def test_a_circle_of_extends_is_named(tmp_path: Path) -> None:
    write(tmp_path, "one.yaml", {"extends": "two.yaml"})
    two = write(tmp_path, "two.yaml", {"extends": "one.yaml"})
    with pytest.raises(ConfigError, match=r"extends itself \(.*two.yaml -> .*one.yaml -> .*two.yaml\); remove one `extends`"):
        load_config(two)


def test_the_parent_named_by_extends_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config named nowhere\.yaml"):
        load_config(write(tmp_path, "child.yaml", {"extends": "nowhere.yaml"}))


def test_plain_values_are_checked_like_a_file() -> None:
    assert parse_config(MINIMAL, origin="a notebook").name == "tiny"
    with pytest.raises(ConfigError, match="config a notebook: unknown key nmae; did you mean 'name'"):
        parse_config(MINIMAL | {"nmae": "x"}, origin="a notebook")


def test_a_config_cannot_be_changed_after_it_was_checked() -> None:
    config = parse_config(MINIMAL, origin="a notebook")
    with pytest.raises(ValueError, match="frozen"):
        config.name = "other"  # type: ignore[misc]  # the point of the test
