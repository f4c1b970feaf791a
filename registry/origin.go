package registry

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// maxAddrBytes bounds worker ids and addresses.
const maxAddrBytes = 256

// NormalizeOrigin returns the origin host:port of a worker URL or of a
// worker_addr: lower-cased host, default port of the scheme, an IPv6 host in
// brackets once; scheme, user, path and query dropped. It resolves no names.
// Only http and https are known; a value without a scheme is taken as http.
func NormalizeOrigin(raw string) (string, error) {
	_, origin, err := splitURL(raw)
	return origin, err
}

// splitURL parses raw and returns it with its origin.
func splitURL(raw string) (*url.URL, string, error) {
	if len(raw) > maxAddrBytes {
		return nil, "", fmt.Errorf("address is longer than %d bytes", maxAddrBytes)
	}
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, "", errors.New("address is not a URL")
	}
	port, err := portOf(u)
	if err != nil {
		return nil, "", err
	}
	host, err := hostOf(u)
	if err != nil {
		return nil, "", err
	}
	origin := net.JoinHostPort(host, port)
	if len(origin) > maxAddrBytes {
		return nil, "", fmt.Errorf("origin is longer than %d bytes", maxAddrBytes)
	}
	return u, origin, nil
}

func portOf(u *url.URL) (string, error) {
	port := u.Port()
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("scheme is not http or https")
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", errors.New("port is not 1 to 65535")
	}
	return strconv.FormatUint(n, 10), nil
}

// hostOf returns the canonical host of u without brackets.
func hostOf(u *url.URL) (string, error) {
	host := u.Hostname()
	if addr, err := netip.ParseAddr(host); err == nil {
		switch {
		case addr.Zone() != "":
			return "", errors.New("host has an IPv6 zone")
		case addr.Is6() != strings.HasPrefix(u.Host, "["):
			return "", errors.New("brackets are for IPv6 hosts only")
		}
		return addr.Unmap().String(), nil
	}
	if host == "" || strings.HasPrefix(u.Host, "[") || strings.ContainsFunc(host, notInHostName) {
		return "", errors.New("host is not a name or an IP address")
	}
	return strings.ToLower(host), nil
}

func notInHostName(c rune) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return false
	}
	return c != '-' && c != '.' && c != '_'
}
