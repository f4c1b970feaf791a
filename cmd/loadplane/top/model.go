package top

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/cmd/loadplane/top/board"
	"github.com/loadplane/loadplane/cmd/loadplane/top/paint"
	"github.com/loadplane/loadplane/cmd/loadplane/top/sheet"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// maxFilter bounds the filter that is typed, characters.
const maxFilter = 64

// news is what the watch has at a moment.
type news struct {
	view   *client.View
	status client.Status
	now    time.Time
}

// page is what the screen shows.
type page uint8

const (
	listPage page = iota
	workerPage
	helpPage
)

// model is the state of the screen. Update changes it and View shows it; it is
// for one goroutine.
type model struct {
	server string
	// ask asks for the checks of a worker.
	ask func(ctx context.Context, worker string) (*pb.ExplainWorkerResponse, error)
	// ctx ends what is asked.
	ctx context.Context
	// advise says what to do about an error of the watch.
	advise func(error) error

	news          news
	choice        board.Choice
	board         *board.Board
	width, height int

	page, before page
	// filter is as it is typed, typing that it is being typed, and undo the one
	// before.
	filter, undo string
	typing       bool
	// chosen is the worker_id of the worker under the cursor, place its row when
	// it was last there, top the first row that is shown.
	chosen     string
	place, top int
	// scroll is the first line of the worker page or the help that is shown.
	scroll int
	// answer is the newest for the open worker; asked is what the worker was
	// like when it was asked for.
	answer *sheet.Answer
	asked  string
}

func newModel(server string, c board.Choice, filter string) *model {
	m := &model{server: server, choice: c, width: 80, height: 24, filter: filter, ctx: context.Background()}
	m.choice.Filter = board.FilterWords(filter)
	m.refresh()
	return m
}

// Init has nothing to do: the watch brings the first news.
func (m *model) Init() tea.Cmd { return nil }

// Update takes a message.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(1, msg.Width), max(1, msg.Height)
	case news:
		m.news = msg
		m.refresh()
		cmd := m.askAgain()
		return m, cmd
	case sheet.Answer:
		if msg.Worker == m.chosen {
			m.answer = &msg
		}
	case tea.PasteMsg:
		m.typeText(msg.Content)
	case tea.KeyPressMsg:
		cmd := m.key(msg)
		return m, cmd
	}
	return m, nil
}

// refresh makes the board anew and keeps the cursor on its worker.
func (m *model) refresh() {
	m.board = board.New(m.news.view, m.news.now, m.choice)
	if m.page == workerPage || m.before == workerPage {
		return
	}
	m.keepCursor()
}

// keepCursor puts the cursor on its worker, or where that was.
func (m *model) keepCursor() {
	if i := m.board.At(m.chosen); i >= 0 {
		m.place = i
		return
	}
	m.move(0)
}

// move moves the cursor by some rows.
func (m *model) move(by int) {
	m.place = max(0, min(m.place+by, len(m.board.Rows)-1))
	m.chosen = ""
	if m.place < len(m.board.Rows) {
		m.chosen = m.board.Rows[m.place].GetWorkerId()
	}
}

// key takes a key.
func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	switch {
	case name == "ctrl+c":
		return tea.Quit
	case name == "ctrl+z":
		return tea.Suspend
	case m.typing:
		m.typeKey(name, k.Text)
		return nil
	case name == "q":
		return tea.Quit
	case name == "?" || name == "h" || name == "f1":
		m.toggleHelp()
		return nil
	case m.page == listPage:
		return m.listKey(name)
	}
	return m.pageKey(name)
}

func (m *model) toggleHelp() {
	if m.page == helpPage {
		m.page, m.before = m.before, listPage
	} else {
		m.page, m.before = helpPage, m.page
	}
	m.scroll = 0
}

// typeKey takes a key while a filter is typed.
func (m *model) typeKey(name, text string) {
	switch name {
	case "enter":
		m.typing = false
	case "esc":
		m.typing = false
		m.setFilter(m.undo)
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(m.filter)
		m.setFilter(m.filter[:len(m.filter)-n])
	case "ctrl+u":
		m.setFilter("")
	default:
		m.typeText(text)
	}
}

// typeText adds to the filter that is being typed.
func (m *model) typeText(text string) {
	if !m.typing {
		return
	}
	text = paint.Clean(text)
	if utf8.RuneCountInString(m.filter+text) <= maxFilter {
		m.setFilter(m.filter + text)
	}
}

func (m *model) setFilter(filter string) {
	m.filter, m.choice.Filter = filter, board.FilterWords(filter)
	m.refresh()
}

// listKey takes a key of the table of workers.
func (m *model) listKey(name string) tea.Cmd {
	switch name {
	case "/":
		m.typing, m.undo = true, m.filter
	case "esc":
		m.setFilter("")
	case "s":
		m.sortBy(1)
	case "r":
		m.choice.Reverse = !m.choice.Reverse
		m.refresh()
	case "enter":
		return m.open()
	default:
		if by, ok := step(name, m.listRoom()); ok {
			m.move(by)
		} else {
			m.sortByKey(name)
		}
	}
	return nil
}

// far is more rows or lines than there are.
const far = 1 << 20

// step says how far a key moves, where a page has room lines.
func step(name string, room int) (by int, ok bool) {
	switch name {
	case "j", "down":
		return 1, true
	case "k", "up":
		return -1, true
	case "pgdown", "ctrl+f", "space":
		return max(1, room-1), true
	case "pgup", "ctrl+b":
		return -max(1, room-1), true
	case "home", "g":
		return -far, true
	case "end", "G":
		return far, true
	}
	return 0, false
}

// sortBy takes the field that is some places further.
func (m *model) sortBy(places int) {
	all := board.Sortable()
	i := slices.IndexFunc(all, func(f board.Field) bool { return f.Name == m.choice.By.Name })
	m.choice.By, m.choice.Reverse = all[(i+places)%len(all)], false
	m.refresh()
}

// sortByKey takes the field with a letter, and reverses it the second time.
func (m *model) sortByKey(key string) {
	for _, f := range board.Sortable() {
		if f.Key == key {
			m.choice.Reverse = f.Name == m.choice.By.Name && !m.choice.Reverse
			m.choice.By = f
			m.refresh()
		}
	}
}

// open opens the worker under the cursor.
func (m *model) open() tea.Cmd {
	if m.chosen == "" {
		return nil
	}
	m.page, m.scroll, m.answer, m.asked = workerPage, 0, nil, ""
	return m.askAgain()
}

// pageKey takes a key of the worker page or the help.
func (m *model) pageKey(name string) tea.Cmd {
	switch name {
	case "esc", "backspace", "left":
		if m.page == helpPage {
			m.toggleHelp()
			return nil
		}
		m.page = listPage
		m.keepCursor()
	case "u":
		m.asked = ""
		return m.askAgain()
	case "c":
		if i := slices.IndexFunc(m.body(), func(l paint.Line) bool { return strings.Contains(l.Text(), sheet.ChecksHead) }); i >= 0 {
			m.scroll = i
		}
	default:
		by, _ := step(name, m.bodyRoom())
		m.scroll += by
	}
	m.scroll = max(0, min(m.scroll, len(m.body())-m.bodyRoom()))
	return nil
}

// askAgain asks for the checks of the open worker, if it is another than when
// they were asked for: by state, not by load.
func (m *model) askAgain() tea.Cmd {
	if m.page != workerPage || m.ask == nil {
		return nil
	}
	r, ok := m.opened()
	if !ok {
		return nil
	}
	like := strings.Join([]string{r.GetWorkerId(), r.State(), r.Reason(), r.GetSourceInstanceId(), board.DialectWord(r.GetDialect())}, "\n")
	if like == m.asked {
		return nil
	}
	m.asked = like
	ask, ctx, id := m.ask, m.ctx, r.GetWorkerId()
	return func() tea.Msg {
		checks, err := ask(ctx, id)
		return sheet.Answer{Worker: id, Checks: checks, Err: err, At: time.Now()}
	}
}

// opened returns the open worker; not where it left the view.
func (m *model) opened() (board.Row, bool) {
	if m.news.view == nil {
		return board.Row{}, false
	}
	w := m.news.view.Worker(m.chosen)
	if w == nil {
		return board.Row{}, false
	}
	return board.RowOf(m.news.view, w, m.news.now), true
}
