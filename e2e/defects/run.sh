#!/usr/bin/env bash
# Applies each patch of this folder to a copy of the tree and runs the tests
# that it names. Every one of them has to fail; without a patch all have to
# pass. Prints a table and exits 1 when a defect survives.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
tree=$tmp/tree
mkdir "$tree"
tar -C "$root" --exclude=./.git --exclude=./bin -cf - . | tar -C "$tree" -xf -

# Operations of the model test for each defect; it ends at the first failure.
export LOADPLANE_MODEL_OPS=${LOADPLANE_DEFECT_OPS:-5000}
status=0

# run_tests PACKAGE TEST...: runs the tests and keeps the output.
run_tests() {
	local package=$1
	shift
	local pattern
	pattern="^($(IFS='|'; echo "$*"))\$"
	local -a flags=()
	if [ "$package" = ./e2e/model ]; then flags=(-rapid.nofailfile -rapid.shrinktime=1s); fi
	go -C "$tree" test -count=1 "$package" -run "$pattern" "${flags[@]}" -v >"$tmp/out" 2>&1
}

# row DEFECT RESULT SECONDS
row() { printf '%-16s | %-62s | %7s\n' "$1" "$2" "$3"; }

# fail TEXT: names what went wrong and shows the end of the output.
fail() {
	echo "defects: $1" >&2
	tail -n 30 "$tmp/out" >&2 || true
	status=1
}

# try PATCH: demands that each test that the patch names fails.
try() {
	local patch=$1 name began package caught=() missed=()
	local -a named
	name=$(basename "$patch" .patch)
	read -r -a named < <(sed -n 's/^# Caught by: //p' "$patch")
	if [ "${#named[@]}" -lt 2 ]; then
		echo "defects: $name: the patch has no line '# Caught by: PACKAGE TEST...'" >"$tmp/out"
		fail "$name names no test"
		return
	fi
	if ! git -C "$tree" apply "$patch" >"$tmp/out" 2>&1; then
		fail "$name does not apply; bring the patch up to date with the tree"
		return
	fi
	began=$SECONDS
	package=${named[0]}
	run_tests "$package" "${named[@]:1}" || true
	for test in "${named[@]:1}"; do
		if grep -q "^--- FAIL: $test " "$tmp/out"; then caught+=("$test"); else missed+=("$test"); fi
	done
	if [ "${#missed[@]}" -gt 0 ]; then
		row "$name" "SURVIVES ${missed[*]}" "$((SECONDS - began))"
		fail "$name is not caught by ${missed[*]}"
	else
		row "$name" "${caught[*]}" "$((SECONDS - began))"
	fi
	git -C "$tree" apply -R "$patch"
}

# sound: the named tests pass on the tree as it is.
sound() {
	local began=$SECONDS package
	while read -r package tests; do
		# shellcheck disable=SC2086 # a list of names
		if ! run_tests "$package" $tests; then
			fail "the tests of $package fail without a patch"
			return 1
		fi
	done < <(sed -n 's/^# Caught by: //p' "$here"/*.patch | awk '
		{ for (i = 2; i <= NF; i++) if (!seen[$1, $i]++) list[$1] = list[$1] " " $i }
		END { for (p in list) print p list[p] }')
	row '(none)' 'all named tests pass' "$((SECONDS - began))"
}

row defect 'caught by' seconds
if sound; then
	for patch in "$here"/*.patch; do try "$patch"; done
fi
exit "$status"
