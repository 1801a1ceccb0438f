"""`rfm deploy --security`: every process finds its own certificate, nobody another's, and no key is written."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.deploy.options import Kind
from ros2_rfm_serving.security.authority import utc_now
from ros2_rfm_serving.security.folder import KEY, Folder
from ros2_rfm_serving.security.issuing import start
from ros2_rfm_serving.security.members import members_of
from ros2_rfm_serving.security.own import ENCLAVE
from ros2_rfm_serving.security.record import Record
from ros2_rfm_serving.shipped import shipped
from test.unit.operate.deploy.cases import documents, environment, planned, pods, services, shipped_factory, unit, written

FACTORY = "factory_emulated.yaml"


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployed") / "security"
    members = members_of(shipped_factory(FACTORY)[0], shipped("config"))
    start(Folder(folder), Record(factory="emulated", domain=0, members={}), members, [], utc_now(), 30.0)
    return folder


@pytest.mark.parametrize("kind", Kind)
def test_no_key_is_written_and_the_readme_says_what_to_put_in_place(security: Path, kind: Kind) -> None:
    texts = written(shipped_factory(FACTORY), kind, security=security)
    keys = [line for file in security.rglob(KEY) for line in file.read_text().splitlines() if "-----" not in line]
    assert keys and not [line for line in keys for text in texts.values() if line in text]
    assert not any("PRIVATE KEY" in text for text in texts.values())
    for process in planned(shipped_factory(FACTORY), kind, security=security).processes:
        assert f"{security}/enclaves/{process.name}" in texts["README.md"]
    assert f"{security}/enclaves/observer" in texts["README.md"], "of `rfm metrics`"
    assert "enclaves" not in "".join(written(shipped_factory(FACTORY), kind).values()), "only who asks for it"


def test_whoever_has_a_certificate_can_read_it(security: Path) -> None:
    """A node with an enclave and without this extra ends with exit code 78."""
    image = written(shipped_factory(FACTORY), Kind.COMPOSE, security=security)["Dockerfile"]
    extras = [set(one.split(",")) for one in re.findall(r"\.whl\)\[(.*?)\]", image)]
    assert len(extras) == 3 and all("security" in one for one in extras)
    assert "security]" in written(shipped_factory(FACTORY), Kind.SYSTEMD, security=security)["README.md"]
    on_zenoh = written(shipped_factory("factory_zenoh.yaml"), Kind.COMPOSE, host_network=True)["Dockerfile"]
    assert all("zenoh" in one for one in re.findall(r"\.whl\)\[(.*?)\]", on_zenoh)), "router, door and robots"


def test_a_pod_has_its_own_certificate_and_its_probe_that_of_somebody_who_looks(security: Path) -> None:
    texts = written(shipped_factory(FACTORY), Kind.KUBERNETES, security=security)
    for document in documents(texts):
        assert kubernetes_validate.validate(document, "1.29", strict=True)
    for name, pod in pods(texts).items():
        member = name.removeprefix("rfm-").replace("-", "_")
        secrets = {one["name"]: one["secret"] for one in pod["volumes"] if "secret" in one}
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            whose = "observer" if container["name"] == "probe" else member
            place = f"/etc/rfm_serving_security/enclaves/{whose}"
            assert {one["name"]: one.get("value") for one in container["env"]}[ENCLAVE] == place
            mounted = {one["mountPath"]: one for one in container["volumeMounts"] if "enclaves" in one["mountPath"]}
            assert mounted.keys() == {place} and mounted[place]["readOnly"]
            secret = secrets[mounted[place]["name"]]
            assert secret["secretName"] == f"rfm-enclave-{whose.replace('_', '-')}" and secret["defaultMode"] == 0o440
            assert f"kubectl create secret generic {secret['secretName']} " in texts["README.md"]


def test_services_and_units_have_their_own_certificates(security: Path) -> None:
    of = shipped_factory(FACTORY)
    for name, service in services(written(of, Kind.COMPOSE, security=security)).items():
        whose = "observer" if name == "metrics" else name
        place = f"/etc/rfm_serving_security/enclaves/{whose}"
        mounted = [one for one in service["volumes"] if "enclaves" in one["target"]]
        assert mounted == [{"type": "bind", "source": f"./enclaves/{whose}", "target": place, "read_only": True}]
        assert service["environment"][ENCLAVE] == place
    texts = written(of, Kind.SYSTEMD, security=security)
    for name, text in texts.items():
        if name.endswith(".service"):
            whose = Path(name).stem.removeprefix("rfm-")
            place = f"/etc/rfm_serving_security/enclaves/{'observer' if whose == 'metrics' else whose}"
            assert environment(unit(text))[ENCLAVE] == place
    assert "sudo chown -R rfm_serving /etc/rfm_serving_security/enclaves" in texts["README.md"]


def test_a_process_without_a_certificate_is_no_deployment(security: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="scheduler has no certificate there; rfm security init"):
        planned(shipped_factory(FACTORY), Kind.COMPOSE, security=tmp_path)


@pytest.mark.parametrize("kind", Kind)
def test_a_zenoh_router_finds_its_rules_where_its_certificate_is(kind: Kind, tmp_path: Path) -> None:
    """And they name certificates where they will lie."""
    of = shipped_factory("factory_zenoh.yaml")
    members = members_of(of[0], shipped("config"))
    options = {} if kind is Kind.SYSTEMD else {"host_network": True}
    for place in ("", "/etc/rfm_serving_security"):
        folder = tmp_path / f"security{len(place)}"
        start(Folder(folder), Record(factory="zenoh", domain=0, members={}, place=place), members, [], utc_now(), 30.0)
        if not place:
            with pytest.raises(ConfigurationError, match=r"look for certificates in .*--at /etc/rfm_serving_security"):
                planned(of, kind, security=folder, **options)
            continue
        readme, rules = written(of, kind, security=folder, **options)["README.md"], f"{folder}/zenoh/router.json5"
        (line,) = [line for line in readme.splitlines() if rules in line]
        assert "/enclaves/router/" in line or f"rfm-enclave-router --from-file={folder}/enclaves/router " in line
