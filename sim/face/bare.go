package face

import "net/http"

// Bare returns the pages of an engine that registers itself at planes: /health
// and nothing to poll.
func Bare() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", healthy)
	mux.HandleFunc("/", notFound)
	return mux
}
