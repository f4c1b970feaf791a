// Package hostile sends the plane what no engine should, over gRPC, while
// healthy engines report beside: their entries must have the history that they
// have without it. It has no code of its own.
package hostile
