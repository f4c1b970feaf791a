// Package client is what a router imports to follow the plane: it turns the
// messages of a watch into immutable views, keeps to the rules of versions and
// lineages, and judges validity by the router's own clock. It depends on the
// wire definitions and the Connect runtime only.
package client
