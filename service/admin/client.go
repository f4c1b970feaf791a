package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
)

// Client asks the plane that serves a socket. It is immutable and safe for
// concurrent use.
type Client struct {
	path string
	http *http.Client
}

// NewClient returns a client for the socket at a path. It dials nothing.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &Client{path, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Add adds a worker, URL[,key=value...] with the keys of --worker. Errors of
// this and the other methods are a *Fault or say that the socket cannot be used,
// and what to do.
func (c *Client) Add(ctx context.Context, worker string) (Answer, error) {
	return c.ask(ctx, http.MethodPost, "/workers", worker)
}

// Remove removes a worker that was added.
func (c *Client) Remove(ctx context.Context, id string) (Answer, error) {
	return c.ask(ctx, http.MethodDelete, "/workers/"+segment(id), "")
}

// Drain keeps new work from a worker of any source, or undoes that.
func (c *Client) Drain(ctx context.Context, id string, on bool) (Answer, error) {
	if on {
		return c.ask(ctx, http.MethodPost, "/workers/"+segment(id)+"/drain", "")
	}
	return c.ask(ctx, http.MethodPost, "/workers/"+segment(id)+"/undrain", "")
}

// segment escapes an id as one segment of a path. Dots alone would be taken for
// folders.
func segment(id string) string {
	if strings.Trim(id, ".") == "" {
		return strings.ReplaceAll(id, ".", "%2E")
	}
	return url.PathEscape(id)
}

func (c *Client) ask(ctx context.Context, method, path, body string) (a Answer, err error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://plane"+path, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return a, c.explain(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return a, c.explain(err)
	}
	if resp.StatusCode != http.StatusOK {
		return a, faultOf(resp.StatusCode, text)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("%s: the answer is not that of a plane; check --socket", c.path)
	}
	return a, nil
}

func faultOf(status int, text []byte) *Fault {
	f := &Fault{Status: status}
	if json.Unmarshal(text, f) != nil || f.Message == "" {
		f.Message, f.Advice = fmt.Sprintf("the plane answered %d", status), "check --socket"
	}
	return f
}

// explain says what to do about a socket that cannot be used.
func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no socket %s; start the plane with: loadplane serve --admin-socket %s", c.path, c.path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing answers at %s; the plane that made it is gone, start it again", c.path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission for %s; run this as the user that the plane runs as", c.path)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("the plane at %s ended before it answered; start it again, and see what it did with: loadplane workers list", c.path)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s did not answer in time; a longer --timeout may help", c.path)
	}
	return fmt.Errorf("%s: %w", c.path, err)
}
