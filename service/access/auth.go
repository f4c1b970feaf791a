package access

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/store"
	"golang.org/x/time/rate"
	grpccreds "google.golang.org/grpc/credentials"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Guard lets requests with a credential through to one listener. Any
// authenticator that is configured suffices. It is safe for concurrent use.
type Guard struct {
	access   *Access
	listener string
	tls      bool
	// logs bounds the lines about refusals.
	logs        *rate.Limiter
	errorWriter *connect.ErrorWriter
}

// Guard returns the guard of a listener, whose name labels metrics and must be
// one of a few. encrypted says that the listener speaks TLS; client
// certificates count only there.
func (a *Access) Guard(listener string, encrypted bool) *Guard {
	return &Guard{
		access: a, listener: listener, tls: encrypted,
		logs:        rate.NewLimiter(1, 10),
		errorWriter: connect.NewErrorWriter(),
	}
}

// open says that the listener asks for nothing.
func (g *Guard) open() bool {
	return g.access.token == nil && (g.access.clients == nil || !g.tls)
}

// check decides by the request's Authorization values and its verified
// certificate chains. An empty reason lets it through.
func (g *Guard) check(authorization []string, state *tls.ConnectionState) store.Reason {
	if g.open() || state != nil && len(state.VerifiedChains) > 0 {
		return ""
	}
	if len(authorization) == 0 || g.access.token == nil {
		return ReasonNoCredential
	}
	scheme, token, _ := strings.Cut(authorization[0], " ")
	if len(authorization) != 1 || !strings.EqualFold(scheme, "Bearer") || !g.access.token.get().Equal(token) {
		return ReasonWrongCredential
	}
	return ""
}

func (g *Guard) refused(reason store.Reason, peer string) {
	g.access.metrics.refuse(g.listener, reason)
	if g.logs.Allow() {
		g.access.logger.Warn("request refused", "listener", g.listener, "reason", string(reason), "peer", peer)
	}
}

// errUnauthenticated is the answer for clients; it does not say what is
// wrong with the credential.
var errUnauthenticated = errors.New("a valid bearer token or client certificate is needed")

// HTTP checks requests before their body is read. The context of one that was
// let through by a certificate ends when the certificate does.
func (g *Guard) HTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if reason := g.check(r.Header.Values("Authorization"), r.TLS); reason != "" {
			g.refused(reason, r.RemoteAddr)
			g.unauthorized(w, r)
			return
		}
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithDeadline(r.Context(), r.TLS.PeerCertificates[0].NotAfter)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (g *Guard) unauthorized(w http.ResponseWriter, r *http.Request) {
	// The body is not wanted; nobody waits for a slow one.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Second))
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="loadplane"`)
	w.Header().Set("Cache-Control", "no-store")
	if g.errorWriter.IsSupported(r) {
		_ = g.errorWriter.Write(w, r, connect.NewError(connect.CodeUnauthenticated, errUnauthenticated))
		return
	}
	http.Error(w, errUnauthenticated.Error(), http.StatusUnauthorized)
}

// SameOrigin refuses state-changing requests that browsers send for pages of
// other origins. Clients that are no browsers are not affected.
func (g *Guard) SameOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.refused(ReasonCrossOrigin, r.RemoteAddr)
		http.Error(w, "requests of pages of another origin are refused", http.StatusForbidden)
	}))
	return protection.Handler(next)
}

// GRPC checks the context of a call; its error is Unauthenticated.
func (g *Guard) GRPC(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	var state *tls.ConnectionState
	address := ""
	if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
		if info, ok := p.AuthInfo.(grpccreds.TLSInfo); ok {
			state = &info.State
		}
	}
	if reason := g.check(md.Get("authorization"), state); reason != "" {
		g.refused(reason, address)
		return status.Error(codes.Unauthenticated, errUnauthenticated.Error())
	}
	return nil
}
