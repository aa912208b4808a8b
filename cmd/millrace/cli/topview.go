package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

// sampled is the message with a new frame, or with the reason why there is none.
type sampled struct {
	frame *topFrame
	err   error
}

// due is the message that it is time for the next frame.
type due struct{}

// topModel is the state of the screen. It implements tea.Model.
type topModel struct {
	sample   func(routes bool) (*topFrame, error)
	interval time.Duration
	frame    *topFrame
	err      error // of the last sample
	panel    int
	panels   [len(panelNames)]panelState
	// typing: keys change the filter.
	typing, paused, help bool
	width, height        int
}

// panelState is what the user has chosen in a panel.
type panelState struct {
	sort   topSort
	filter string
	first  int // the first row shown
}

func newTopModel(sample func(bool) (*topFrame, error), interval time.Duration, panel int) *topModel {
	m := &topModel{sample: sample, interval: interval, panel: max(panel, 0), width: 80, height: 24}
	for p := range m.panels {
		m.panels[p].sort = defaultSort(p)
	}
	return m
}

// runTopView shows the model until the user quits or ctx ends.
func runTopView(ctx context.Context, out io.Writer, m *topModel) error {
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithOutput(out), tea.WithoutSignalHandler()).Run()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Init implements tea.Model.
func (m *topModel) Init() tea.Cmd { return m.next() }

func (m *topModel) next() tea.Cmd {
	routes := m.panel == panelRoutes
	return func() tea.Msg {
		f, err := m.sample(routes)
		return sampled{f, err}
	}
}

// Update implements tea.Model.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case due:
		return m, m.next()
	case sampled:
		if msg.err != nil {
			m.err = msg.err
		} else if !m.paused {
			m.err = nil
			m.take(msg.frame)
		}
		return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return due{} })
	case tea.KeyPressMsg:
		if m.typing {
			return m, m.typed(msg)
		}
		return m, m.pressed(msg.String())
	}
	return m, nil
}

// take shows a frame. One that was read without routes keeps those of the last one.
func (m *topModel) take(f *topFrame) {
	if f.pairs == nil && m.frame != nil {
		f.pairs = m.frame.pairs
	}
	m.frame = f
}

// typed changes the filter.
func (m *topModel) typed(key tea.KeyPressMsg) tea.Cmd {
	s := &m.panels[m.panel]
	switch key.String() {
	case "ctrl+c":
		return tea.Quit
	case "enter":
		m.typing = false
	case "esc":
		m.typing, s.filter = false, ""
	case "backspace":
		if text := []rune(s.filter); len(text) > 0 {
			s.filter = string(text[:len(text)-1])
		}
	default:
		s.filter += plain(key.Key().Text)
	}
	s.first = 0
	return nil
}

func (m *topModel) pressed(key string) tea.Cmd {
	s := &m.panels[m.panel]
	columns := 1
	if m.frame != nil {
		columns = len(m.frame.table(m.panel).columns)
	}
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "1", "2", "3", "4", "5":
		m.choose(int(key[0] - '1'))
	case "tab":
		m.choose((m.panel + 1) % len(panelNames))
	case "shift+tab":
		m.choose((m.panel + len(panelNames) - 1) % len(panelNames))
	case ">", "right":
		s.sort.column = (s.sort.column + 1) % columns
	case "<", "left":
		s.sort.column = (s.sort.column + columns - 1) % columns
	case "r":
		s.sort.reverse = !s.sort.reverse
	case "/":
		m.typing, m.help = true, false
	case "esc":
		s.filter, m.help = "", false
	case "space":
		m.paused = !m.paused
	case "?":
		m.help = !m.help
	case "up", "k":
		s.first--
	case "down", "j":
		s.first++
	case "pgup":
		s.first -= m.room()
	case "pgdown":
		s.first += m.room()
	case "home", "g":
		s.first = 0
	case "end", "G":
		s.first = 1 << 30 // View finds the last page.
	}
	return nil
}

func (m *topModel) choose(panel int) { m.panel, m.help = panel, false }

// linesAround are the lines of the screen that are not rows: the summary, the panels, the header,
// and the last line.
const linesAround = 6

// room is the number of rows that fit on the screen.
func (m *topModel) room() int { return max(m.height-linesAround, 1) }

// topStyle is a sequence that begins a style. The colours are those of the terminal's own theme.
// Bubble Tea leaves colours out if the terminal has none, or if NO_COLOR is set. Lip Gloss would do
// the same, but asks tmux for its colours at the start of each process of this binary.
type topStyle string

const (
	topBold    topStyle = "\x1b[1m"
	topFaint   topStyle = "\x1b[2m"
	topChosen  topStyle = "\x1b[7m"
	endOfStyle          = "\x1b[m"
)

var topLevels = [...]topStyle{levelFine: "", levelWarning: "\x1b[33m", levelCritical: "\x1b[1;31m"}

// render gives the style to a line without styles.
func (s topStyle) render(line string) string {
	if s == "" {
		return line
	}
	return string(s) + line + endOfStyle
}

// View implements tea.Model.
func (m *topModel) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	v.WindowTitle = "millrace top"
	return v
}

func (m *topModel) screen() string {
	lines := m.head()
	switch {
	case m.help:
		lines = append(lines, strings.Split(topHelp, "\n")...)
	case m.frame != nil:
		lines = append(lines, m.body()...)
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(m.height-1, 0)], m.foot())
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, m.width, "")
	}
	return strings.Join(lines, "\n")
}

// head returns the summary and the names of the panels.
func (m *topModel) head() []string {
	lines := []string{"waiting for the scheduler", ""}
	if m.frame != nil {
		s := m.frame.summary()
		lines = []string{topBold.render(s[0]), s[1]}
	}
	var tabs []string
	for p, name := range panelNames {
		tab, style := fmt.Sprintf(" %d %s ", p+1, name), topStyle("")
		if p == panelAlarms && m.frame != nil && len(m.frame.alarms) > 0 {
			tab = fmt.Sprintf(" %d %s (%d) ", p+1, name, len(m.frame.alarms))
			style = topLevels[levelCritical]
		}
		if p == m.panel {
			style = topChosen
		}
		tabs = append(tabs, style.render(tab))
	}
	return append(lines, strings.Join(tabs, ""), "")
}

// body returns the header and the rows that fit.
func (m *topModel) body() []string {
	s := &m.panels[m.panel]
	t := m.frame.table(m.panel)
	t.sort(s.sort)
	if s.filter != "" {
		t.filter(s.filter)
	}
	mark := "↑"
	if s.sort.reverse {
		mark = "↓"
	}
	t.columns[s.sort.column] += mark
	header, rows := t.lines()
	s.first = max(min(s.first, len(rows)-m.room()), 0)
	lines := []string{topBold.render(header)}
	for i := s.first; i < min(len(rows), s.first+m.room()); i++ {
		lines = append(lines, topLevels[t.rows[i].level].render(rows[i]))
	}
	if len(rows) == 0 {
		lines = append(lines, topFaint.render("none"))
	}
	return lines
}

// foot returns the last line: an error, the filter, or the keys.
func (m *topModel) foot() string {
	filter := m.panels[m.panel].filter
	switch {
	case m.typing:
		return "/" + filter + "▏"
	case m.err != nil:
		return topLevels[levelCritical].render("no answer: " + strings.ReplaceAll(errorText(m.err), "\n", " "))
	}
	text := "q quit  1-5 panel  <> sort  r reverse  / filter  space pause  ? help"
	if filter != "" {
		text = "filter: " + filter + " (esc ends it)  " + text
	}
	if m.paused {
		text = "PAUSED  " + text
	}
	return topFaint.render(text)
}
