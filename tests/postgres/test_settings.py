"""What a store's URL says reaches libpq as it was meant, and nothing secret in it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from stateroom.backends import urls
from stateroom.backends.postgres.settings import Settings
from stateroom.errors import InvalidInput

SECRET = "geheim"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's own settings."""
    for name in ("PGAPPNAME", "PGSERVICE", "PGHOST", "PGUSER", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)


def given(url: str) -> dict[str, Any]:
    return conninfo_to_dict(Settings.parse(url).conninfo)


def test_words_of_ours_are_ours_and_the_others_libpqs() -> None:
    settings = Settings.parse("postgres://app@db/x?lanes=3&readers=9&patience_s=2.5&pooler=on&sslmode=require")
    assert (settings.lanes, settings.readers, settings.patience_s, settings.pooler) == (3, 9, 2.5, True)
    assert (settings.prepare, settings.listen, settings.connections) == (False, False, 14)
    found = conninfo_to_dict(settings.conninfo)
    assert (found["sslmode"], found["user"], found["host"], found["dbname"]) == ("require", "app", "db", "x")
    assert "lanes" not in found


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("postgresql:///x", {"dbname": "x"}),
        ("postgresql://", {}),
        ("postgresql:///x?host=/run/pg&port=5433", {"host": "/run/pg", "port": "5433"}),
        ("postgresql://a,b:5433/x?target_session_attrs=read-write", {"host": "a,b", "target_session_attrs": "read-write"}),
        ("postgresql://u@[::1]:5433/x", {"host": "::1", "port": "5433"}),
        ("postgresql:///x?options=-c%20search_path%3Da%2Bb", {"options": "-c search_path=a+b"}),
        ("postgresql:///x?application_name=shop+1", {"application_name": "shop+1"}),
        ("postgresql://u:a%40b%2F@h/x", {"password": "a@b/"}),
        ("postgresql:///x?service=shop", {"service": "shop"}),
    ],
)
def test_a_url_means_what_it_means_to_libpq(url: str, wanted: dict[str, str]) -> None:
    assert given(url).items() >= wanted.items()


def test_our_name_and_keepalives_are_only_what_nobody_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    found = given("postgresql://h/x")
    assert (found["fallback_application_name"], found["keepalives_idle"]) == ("stateroom", "5")
    assert given("postgresql://h/x?keepalives_idle=60")["keepalives_idle"] == "60"
    assert "keepalives_idle" not in given("postgresql:///x?service=shop")
    monkeypatch.setenv("PGSERVICE", "shop")
    assert "keepalives_idle" not in given("postgresql:///x")


def test_a_replica_is_the_same_but_for_where_it_is() -> None:
    settings = Settings.parse(f"postgresql://u:{SECRET}@a,b/x?replica=c:5433&target_session_attrs=read-write&sslmode=disable")
    found = conninfo_to_dict(settings.replica_conninfo)
    assert (found["host"], found["port"], found["user"], found["password"]) == ("c", "5433", "u", SECRET)
    assert (found["dbname"], found["sslmode"], "target_session_attrs" in found) == ("x", "disable", False)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/x?lanes=0",
        "postgresql://h/x?lanes=many",
        "postgresql://h/x?readers=1000",
        "postgresql://h/x?patience_s=-1",
        "postgresql://h/x?pooler=maybe",
        "postgresql://h/x?lane=3",
        f"postgresql://u:{SECRET}@h/x?lane=3",
        f"postgresql://u:{SECRET}@@h/x",
        f"postgresql://u:x/{SECRET}@h/x",
        f"postgresql://u:x?{SECRET}@h/x",
        f"postgresql://u:%zz{SECRET}@h/x",
        f"postgresql://u:{SECRET}@[h/x",
        f"postgresql://h:{SECRET}/x",
        f"postgresql://h/x?password={SECRET}&lanes=x",
    ],
)
def test_what_is_wrong_is_said_without_what_is_secret(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Settings.parse(url)
    assert refused.value.reason == "store_url_invalid"
    assert SECRET not in refused.value.message
    assert refused.value.__cause__ is None or SECRET not in str(refused.value.__cause__)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@h/x",
        f"postgresql://u:{SECRET}@{SECRET}@h/x",
        f"postgresql://u:a/{SECRET}@h/x",
        f"postgresql://u:a?{SECRET}#@h/x",
        f"postgresql://h/x?user=u&password={SECRET}&sslmode=require",
        f"postgresql://h/x?sslpassword={SECRET}",
        f"mysql://u:{SECRET}@h/x",
        f"host=h password={SECRET} dbname=x",
        f"host=h password = '{SECRET} {SECRET}'",
    ],
)
def test_what_is_shown_of_a_url_is_not_secret(url: str) -> None:
    assert SECRET not in urls.shown(url)
    assert "***" in urls.shown(url)


def test_what_is_shown_of_settings_is_not_secret() -> None:
    settings = Settings.parse(f"postgresql://u:{SECRET}@h/x?replica=c")
    assert SECRET not in f"{settings} {settings!r}"
    assert "u:***@h" in repr(settings)


def test_names_and_services_of_the_machine_reach_the_server(
    postgres_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def name_of(url: str) -> str:
        with psycopg.connect(Settings.parse(url).conninfo) as db:
            (found,) = db.execute("select current_setting('application_name')").fetchone() or ("",)
            return str(found)

    url = postgres_server.url()
    assert name_of(url) == "stateroom"
    assert name_of(f"{url}&application_name=shop") == "shop"
    monkeypatch.setenv("PGAPPNAME", "of the machine")
    assert name_of(url) == "of the machine"
    monkeypatch.delenv("PGAPPNAME")
    service = (
        f"[shop]\nhost={postgres_server.home}\nport={postgres_server.port}\nuser=postgres\napplication_name=of the service\n"
    )
    (tmp_path / "services").write_text(service)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    assert name_of("postgresql:///postgres?service=shop") == "of the service"
