package egress

import "context"

// Line lets the requests of several clients to one engine go one after the
// other, in the order in which they came. A nil Line makes nobody wait. It is
// safe for concurrent use.
type Line struct{ busy chan struct{} }

// NewLine returns a line with nobody in it.
func NewLine() *Line { return &Line{busy: make(chan struct{}, 1)} }

// Join waits for those that came before. It returns what lets the next one go,
// to be called once, or the error of ctx where that ends first.
func (l *Line) Join(ctx context.Context) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if l == nil {
		return func() {}, nil
	}
	select {
	case l.busy <- struct{}{}:
		return func() { <-l.busy }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
