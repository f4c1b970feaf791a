// Package remote asks a running plane and shows its answers to people: as
// tables that fit a terminal, as JSON and as YAML.
package remote
