package top

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/cmd/loadplane/top/board"
	"github.com/loadplane/loadplane/cmd/loadplane/top/paint"
	"github.com/loadplane/loadplane/cmd/loadplane/top/sheet"
)

// quiet is the time without a message after which the view is called old. The
// plane sends one a second.
const quiet = 2500 * time.Millisecond

// View shows the screen.
func (m *model) View() tea.View {
	lines := m.lines()
	texts := make([]string, len(lines))
	for i, l := range lines {
		texts[i] = l.Paint(m.width)
	}
	v := tea.NewView(strings.Join(texts, "\n"))
	v.AltScreen = true
	if m.typing {
		v.Cursor = tea.NewCursor(min(m.width-1, len("filter: ")+paint.Width(m.filter)), m.height-1)
	}
	return v
}

// lines returns as many lines as the screen has.
func (m *model) lines() []paint.Line {
	var out []paint.Line
	switch m.page {
	case listPage:
		out = m.list()
	default:
		out = append(m.header(), m.visibleBody()...)
	}
	for len(out) < m.height-1 {
		out = append(out, nil)
	}
	return append(out[:m.height-1], m.footer())
}

// header says which plane is shown, and how good the view is.
func (m *model) header() []paint.Line {
	word, t := m.live()
	l := paint.Say(paint.Strong, "loadplane top  ").Add(t, word)
	if v := m.news.view; v != nil {
		if v.Warming() {
			l = l.Add(paint.Warn, "  WARMING")
		}
		l = l.Add(paint.Plain, fmt.Sprintf("  age %s  %s", paint.Span(v.Age(m.news.now)), paint.Clean(version(v))))
	}
	out := []paint.Line{l.Add(paint.Dim, "  "+paint.Clean(m.server)), m.board.Totals()}
	if text := m.banner(word); text != "" {
		out = append(out, paint.Say(paint.Bad, paint.Fit(text, m.width, paint.Left)))
	}
	return out
}

// version names what is shown, short.
func version(v *client.View) string { return fmt.Sprintf("%.8s/%d", v.Lineage(), v.Version()) }

// The states of the watch.
const (
	stateLive       = "LIVE"
	stateOld        = "OLD"
	stateLost       = "LOST"
	stateConnecting = "CONNECTING"
)

// live says whether what is shown is what is.
func (m *model) live() (string, paint.Tone) {
	s := m.news.status
	switch {
	case m.news.view == nil && s.LastError == nil:
		return stateConnecting, paint.Warn
	case !s.Connected():
		return stateLost, paint.Bad
	case m.news.now.Sub(s.LastMessage) > quiet:
		return stateOld, paint.Warn
	}
	return stateLive, paint.Good
}

// banner says what is wrong with the watch; empty where nothing is.
func (m *model) banner(state string) string {
	s := m.news.status
	switch state {
	case stateLost:
		why := ""
		if s.LastError != nil {
			why = m.why(s.LastError)
		}
		return fmt.Sprintf("STREAM LOST at %s, %s ago; tried %d times, next try %s: %s",
			s.Since.Format(time.TimeOnly), paint.Span(m.news.now.Sub(s.Since)), s.Reconnects(), next(s.LastCause), why)
	case stateOld:
		return fmt.Sprintf("NOTHING HEARD for %s: what is shown may be old", paint.Span(m.news.now.Sub(s.LastMessage)))
	}
	return ""
}

func (m *model) why(err error) string {
	if m.advise != nil {
		err = m.advise(err)
	}
	return err.Error()
}

// next says when a watcher tries again after a cause.
func next(c client.Cause) string {
	if c == client.CauseRefused {
		return "within 30s"
	}
	return "within 5s"
}

// list is the page with the pools and the workers.
func (m *model) list() []paint.Line {
	out := m.listTop()
	rows := m.board.Rows
	room := max(1, m.height-1-len(out)-1)
	m.top = max(0, min(m.top, m.place, len(rows)-room))
	if m.place >= m.top+room {
		m.top = m.place - room + 1
	}
	shown := rows[m.top:max(m.top, min(len(rows), m.top+room))]
	l := board.NewLayout(m.width, 1, shown, rows)
	out = append(out, append(paint.Say(paint.Plain, " "), l.Head(m.choice)...))
	for _, r := range shown {
		if r.GetWorkerId() == m.chosen {
			out = append(out, append(paint.Say(paint.Plain, ">"), l.Row(r)...).Choose(m.width))
		} else {
			out = append(out, append(paint.Say(paint.Plain, " "), l.Row(r)...))
		}
	}
	if len(rows) == 0 {
		out = append(out, paint.Say(paint.Dim, " "+m.nothing()))
	}
	return out
}

// listTop is what stands above the table of workers.
func (m *model) listTop() []paint.Line {
	out := m.header()
	if pools := m.board.PoolLines(m.width, max(0, m.height/3-len(out)+2)); pools != nil {
		out = append(out, nil)
		out = append(out, pools...)
	}
	return append(out, nil)
}

// listRoom is the number of workers that the screen has room for.
func (m *model) listRoom() int { return max(1, m.height-1-len(m.listTop())-1) }

// nothing says why no worker is shown.
func (m *model) nothing() string {
	switch {
	case m.news.view == nil:
		return "no view yet"
	case m.board.All > 0:
		return "no worker matches the filter; Esc clears it"
	}
	return "the plane knows no worker"
}

// footer says what is shown, and the keys.
func (m *model) footer() paint.Line {
	switch {
	case m.typing:
		return paint.Say(paint.Strong, "filter: ").Add(paint.Plain, m.filter).Add(paint.Dim, "   Enter keeps it, Esc undoes it")
	case m.page == helpPage:
		return paint.Say(paint.Dim, "Esc back  j/k scroll  q quit")
	case m.page == workerPage:
		return paint.Say(paint.Dim, "Esc back  j/k PgUp PgDn scroll  c checks  u ask again  ? help  q quit")
	}
	text := fmt.Sprintf("%d of %d by %s", len(m.board.Rows), m.board.All, m.choice.By.Name)
	if m.filter != "" {
		text += fmt.Sprintf(", filter %q", paint.Cut(paint.Clean(m.filter), 24, paint.Left))
	}
	return paint.Say(paint.Strong, text).Add(paint.Dim, hints(m.width-paint.Width(text)))
}

// hints are the keys of the table, as many as there is room for: the last say
// how to see the others.
func hints(room int) (text string) {
	for _, h := range []string{"q quit", "? help", "Enter open", "r reverse", "s sort", "/ filter"} {
		if paint.Width(text)+2+len(h) > room {
			break
		}
		text = "  " + h + text
	}
	return text
}

// bodyRoom is the number of lines of the worker page or the help that the
// screen has room for.
func (m *model) bodyRoom() int { return max(1, m.height-1-len(m.header())) }

// body is the whole of the worker page or the help.
func (m *model) body() []paint.Line {
	if m.page == helpPage {
		return sheet.Help()
	}
	return m.worker()
}

// besideFrom is the least width of a screen that shows the checks on the right.
const besideFrom = 160

// worker is the page of one worker.
func (m *model) worker() []paint.Line {
	r, ok := m.opened()
	if !ok {
		return []paint.Line{nil, paint.Say(paint.Bad, paint.Fit("worker "+m.chosen, m.width, paint.Left)), paint.Say(paint.Plain, "It is no longer in the view. Esc goes back.")}
	}
	half := m.width
	if m.width >= besideFrom {
		half = m.width / 2
	}
	out := sheet.Worker(m.news.view, r, m.news.now, half-1)
	checks := append([]paint.Line{nil}, sheet.Checks(m.answer, m.news.now, half-1)...)
	if half < m.width {
		return paint.Beside(out, checks, half)
	}
	return append(out, checks...)
}

// visibleBody is the part of the body that is shown.
func (m *model) visibleBody() []paint.Line {
	all := m.body()
	from := max(0, min(m.scroll, len(all)-m.bodyRoom()))
	return all[from:]
}
