package engine

import (
	"encoding/binary"
	"fmt"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	// firstSequence and StampBase keep the patched numbers at one width.
	firstSequence = 1 << 28
	sequenceWidth = 5
	stampWidth    = 7

	// StampBase is added to the send time that num_total_tokens of rank 0
	// carries, microseconds of the machine's monotonic clock.
	StampBase = 1 << 42

	frameHead   = 9 // of an HTTP/2 frame
	messageHead = 5 // of a gRPC or Connect message
	maxFrame    = 16384

	// Tags of what is written by hand: varints, and ranks as bytes.
	tagSequence = 2 << 3
	tagRanks    = 7<<3 | 2
	tagRunning  = 3 << 3
	tagTotal    = 7 << 3

	maxRunning = 127 // one byte
)

// Identity is what an engine says of itself. It is a plain value.
type Identity struct {
	// Addr is the origin, http://host:port.
	Addr string
	// Source names the life of the process.
	Source string
	// Ranks is the number of DP ranks, at least 1.
	Ranks int
}

// report is a whole DATA frame with one report in it, patched for each
// sending. It is for one goroutine.
type report struct {
	frame []byte
	// sequence, stamp and running are the places of what changes.
	sequence, stamp int
	running         []int
	next            uint64
}

func newReport(id Identity) (*report, error) {
	r := &report{frame: make([]byte, frameHead+messageHead), next: firstSequence}
	err := r.merge(&pb.LoadReport{SourceInstanceId: id.Source})
	r.sequence = r.varint(tagSequence, sequenceWidth)
	model := "bench-model"
	err = orElse(err, r.merge(&pb.LoadReport{
		ReportTimeUnixMs: 1_790_000_000_000,
		Worker:           &pb.Worker{WorkerAddr: id.Addr, WorkerType: pb.WorkerType_WORKER_TYPE_REGULAR, Model: &model},
		Status:           pb.ReportStatus_REPORT_STATUS_HEALTHY,
	}))
	for i := range id.Ranks {
		err = orElse(err, r.rank(int32(i)))
	}
	if err == nil && len(r.frame) > frameHead+maxFrame {
		err = fmt.Errorf("a report of %d ranks does not fit a frame", id.Ranks)
	}
	r.finish()
	return r, err
}

func orElse(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// merge appends the fields of a message.
func (r *report) merge(m proto.Message) (err error) {
	r.frame, err = proto.MarshalOptions{}.MarshalAppend(r.frame, m)
	return err
}

// varint appends a field of fixed width and returns its place.
func (r *report) varint(tag byte, width int) int {
	r.frame = append(r.frame, tag)
	at := len(r.frame)
	r.frame = append(r.frame, make([]byte, width)...)
	return at
}

// rank appends a rank: all of its fields, in the order of an engine.
func (r *report) rank(i int32) error {
	sub := &report{}
	err := sub.merge(&pb.RankLoad{DpRank: i, SnapshotTimeUnixMs: 1_789_999_999_990})
	running := sub.varint(tagRunning, 1)
	err = orElse(err, sub.merge(&pb.RankLoad{NumWaitingReqs: 3, NumWaitingUncachedTokens: 5120, NumUsedTokens: 210_000}))
	total := sub.varint(tagTotal, stampWidth)
	err = orElse(err, sub.merge(&pb.RankLoad{
		MaxTotalNumTokens: 500_000, MaxRunningRequests: 256,
		TokenUsage: 0.42, GenThroughput: 1812.5, CacheHitRate: 0.61, Utilization: 0.77, PrefillThroughput: 9043.25,
	}))
	putVarint(sub.frame[total:total+stampWidth], StampBase)
	r.frame = append(r.frame, tagRanks)
	r.frame = protowire.AppendVarint(r.frame, uint64(len(sub.frame)))
	r.running = append(r.running, len(r.frame)+running)
	if i == 0 {
		r.stamp = len(r.frame) + total
	}
	r.frame = append(r.frame, sub.frame...)
	return err
}

// finish writes the heads of the frame and of the message.
func (r *report) finish() {
	n := len(r.frame) - frameHead
	dataHead(r.frame, n)
	binary.BigEndian.PutUint32(r.frame[frameHead+1:], uint32(n-messageHead))
}

// dataHead writes the head of a DATA frame of stream 1.
func dataHead(b []byte, payload int) {
	b[0], b[1], b[2] = byte(payload>>16), byte(payload>>8), byte(payload)
	b[8] = streamID
}

// payload is what a report takes of the windows.
func (r *report) payload() int { return len(r.frame) - frameHead }

// append appends the next report, with other values than the last.
func (r *report) append(dst []byte, stamp int64) []byte {
	putVarint(r.frame[r.sequence:r.sequence+sequenceWidth], r.next)
	putVarint(r.frame[r.stamp:r.stamp+stampWidth], uint64(StampBase+stamp))
	for _, at := range r.running {
		r.frame[at] = byte(1 + r.next%maxRunning)
	}
	r.next++
	return append(dst, r.frame...)
}

// putVarint fills b with a varint of exactly its length.
func putVarint(b []byte, v uint64) {
	for i := range b {
		b[i] = byte(v) | 0x80
		v >>= 7
	}
	b[len(b)-1] &^= 0x80
}
