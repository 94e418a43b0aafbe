#!/bin/sh
# Installs the programs that only the system can give and some tests need, where that is possible:
# as root on Debian. Elsewhere it says what is missing; those tests are then reported as not run,
# which STREAMDP_STRICT=1 (as in .ci/run) makes a failure.
set -eu

missing=""
need() { # program package
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need promtool prometheus
need chromium chromium
need chromedriver chromium-driver
need systemd-analyze systemd
need kcat kcat
need curl curl
need javac default-jdk-headless
need node nodejs
need go golang-go
need mvn maven
need buildah buildah
need mmdebstrap mmdebstrap
# Helm is to be had as a Go module alone. It is built once, which takes some minutes.
build_helm() {
	if ! command -v helm >/dev/null 2>&1 && command -v go >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
		echo "Building helm for the tests"
		GOBIN=/usr/local/bin go install helm.sh/helm/v3/cmd/helm@v3.22.0 ||
			echo "helm was not built: its tests will not run" >&2
	fi
}
if [ -z "$missing" ]; then
	build_helm
	exit 0
fi

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	echo "Tests that need these Debian packages will not run:$missing" >&2
	exit 0
fi

# Only the programs are wanted: no service of theirs is started.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi

echo "Installing Debian packages for the tests:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086  # a list of words
apt-get install -qq -y --no-install-recommends $missing >/dev/null
build_helm
