/// Items at numbers that stay theirs until they leave.
pub(super) struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many there is memory for.
    pub(super) fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    pub(super) fn insert(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(item);
                slot
            }
            None => {
                let slot =
                    u32::try_from(self.slots.len()).expect("there are fewer than 2^32 entries");
                self.slots.push(Some(item));
                slot
            }
        }
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<T> {
        let item = self.slots[slot as usize].take()?;
        self.free.push(slot);
        Some(item)
    }

    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn into_items(self) -> impl Iterator<Item = T> {
        self.slots.into_iter().flatten()
    }
}
