package reader

import "sync"

// maxKeptBuffer is the size of the largest buffer that is used again.
const maxKeptBuffer = 1 << 20

// Buffers are those of pages, between two rounds of any of the readers that
// share them. The zero Buffers are ready; they are safe for concurrent use.
type Buffers struct{ pool sync.Pool }

// take takes a buffer for a page; nil where there is none yet.
func (b *Buffers) take() []byte {
	kept, _ := b.pool.Get().(*[]byte)
	if kept == nil {
		return nil
	}
	return *kept
}

// give gives a buffer back.
func (b *Buffers) give(buffer []byte) {
	if cap(buffer) > 0 && cap(buffer) <= maxKeptBuffer {
		b.pool.Put(&buffer)
	}
}
